#!/bin/sh
# vLLM's own router (pip install vllm-router), sticky by the header X-Session-ID. Put your servers' addresses in.
# A new job goes to the server with the fewest; when its server is gone it moves.
exec vllm-router --host 0.0.0.0 --port 8080 \
    --policy sticky_least_loaded \
    --request-timeout-secs 3600 \
    --health-check-interval-secs 2 --health-check-timeout-secs 10 --health-failure-threshold 2 --health-success-threshold 1 \
    --worker-urls http://vllm-1:8000 http://vllm-2:8000
