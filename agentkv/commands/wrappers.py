"""Programs that run another: where in their words that other one stands. Data for `prefixes`.

Options named here take a value; other words that begin with "-" are flags.
"""

from __future__ import annotations

from typing import NamedTuple

from agentkv.commands.program import by_name, word_set


class Wrapper(NamedTuple):
    """How the words of one wrapper are read."""

    options: frozenset[str] = frozenset()
    num_operands: int = 0
    """Words of its own before the program: a user, a lock file, a CPU mask."""
    script_options: frozenset[str] = frozenset()
    """Their value is bash text, run in place of a program."""
    markers: frozenset[str] = frozenset()
    """The program stands right behind one of these; without one it runs none."""
    idle_options: frozenset[str] = frozenset()
    """With one of these it runs no program, or does not wait for it."""
    counts_itself: bool = False
    """It takes time of its own, so both it and the program count."""
    has_tasks: bool = False
    """The next word may name a task of the project rather than a program."""


def _wrapper(
    options: str = "", operands: int = 0, *, script: str = "", markers: str = "", idle: str = ""
) -> Wrapper:
    named, scripts, marks, idles = map(word_set, (options, script, markers, idle))
    return Wrapper(named, operands, scripts, marks, idles)


_PLAIN = _wrapper()
_DASHES = _wrapper(markers="--")

WRAPPERS = by_name(
    {
        "cross-env nohup setsid unbuffer builtin chronic linux32 linux64 firejail tini busybox"
        " dbus-run-session torsocks valgrind catchsegv ccache sccache distcc": _PLAIN,
        "gosu su-exec chroot setarch envdir": _wrapper(operands=1),
        "sudo": _wrapper("-u -g -h -p -C -U -D -R -r -t -T --user --group --host --prompt --chdir"),
        "doas": _wrapper("-u -C"),
        "su runuser": _wrapper(
            "-s -g -G -w --shell --group", 1, script="-c --command --session-command"
        ),
        "env": _wrapper("-u -C -S --unset --chdir --split-string"),
        "time gtime": _wrapper("-f -o --format --output"),
        "nice": _wrapper("-n --adjustment"),
        "ionice": _wrapper("-c -n -p --class --classdata", idle="-p"),
        "chrt": _wrapper("-T -P -D", 1, idle="-p --pid"),
        "taskset": _wrapper(operands=1, idle="-p -ap -cp -pc --pid"),
        "numactl": _wrapper("-N -m -i -p -C --cpunodebind --membind --physcpubind --interleave"),
        "prlimit": _wrapper("-p", idle="-p --pid"),
        "setpriv": _wrapper("--reuid --regid --groups --inh-caps --bounding-set"),
        "stdbuf": _wrapper("-i -o -e --input --output --error"),
        "script": _wrapper("-E -I -O -B -T -t -m", 1, script="-c --command"),
        "command": _wrapper(idle="-v -V"),
        "exec": _wrapper("-a"),
        "timeout gtimeout": _wrapper("-k -s --kill-after --signal"),
        "flock": _wrapper("-w -E --wait --timeout --conflict-exit-code", 1, script="-c --command"),
        "xargs": _wrapper(
            "-I -n -P -L -d -a -E -s --max-args --max-procs --max-lines --delimiter --arg-file"
        ),
        "systemd-run": _wrapper("-p -u -E -M -H --property --unit --setenv --slice --uid --gid"),
        "wsl": _wrapper("-d -u --distribution --user --cd"),
        "unshare": _wrapper("-R -w -S -G --root --wd"),
        "nsenter": _wrapper("-t -S -G --target"),
        "arch": _wrapper("-arch"),
        "fakeroot": _wrapper("-l -s -i -b"),
        "proot": _wrapper("-r -b -w -q"),
        "caffeinate": _wrapper("-t -w"),
        "dumb-init": _wrapper("-r"),
        "xvfb-run": _wrapper(
            "-s -n -e -f -p -w --server-args --server-num --error-file --auth-file --wait"
        ),
        "proxychains proxychains4": _wrapper("-f"),
        "strace": _wrapper("-o -e -p -s -u -E -a -I -O -S -P -X -b", idle="-p"),
        "ltrace": _wrapper("-o -e -n -s -u -l -a -p", idle="-p"),
        "heaptrack": _wrapper("-o -p", idle="-p"),
        "scan-build": _wrapper("-o"),
        "bear": _wrapper("-o --output"),
        "mpirun mpiexec": _wrapper(
            "-n -np -c -H -N -x -wdir --host -host --hostfile -hostfile --map-by --bind-to"
        ),
        "srun": _wrapper("-n -N -p -t -c -J -A -w -G --ntasks --nodes --partition --time --gres"),
        "npx": _wrapper("-p --package", script="-c --call"),
        "bunx": _wrapper("-p --package"),
        "uvx": _wrapper("--from --with -p --python"),
        "dotenv": _DASHES,
        "env-cmd": _wrapper("-f -e"),
        "nix-shell": _wrapper("-p -A -I", script="--run --command"),
        "ssh": _wrapper(
            "-p -i -o -l -F -J -L -R -D -b -c -E -e -I -m -O -Q -S -W -w",
            1,
            idle="-N -f -fN -Nf -O -Q -W",
        )._replace(counts_itself=True),
    }
)
"""Wrappers by name."""

_CONTAINER = _wrapper(
    "-p -v -e -w -u -h -l -m -c -a --name --network --net --entrypoint --mount --env --env-file"
    " --gpus --platform --cpus --memory --shm-size --user --workdir --volume --publish --label"
    " --add-host --device --ulimit --cap-add --cap-drop --security-opt --pull --restart --ipc --pid"
    " --userns --dns --log-driver --tmpfs --stop-timeout --runtime --cidfile --volumes-from --link"
    " --expose --hostname --attach --index --group-add --cpuset-cpus --memory-swap --init-path"
    " --log-opt --sysctl --uts --ip --domainname",
    1,
    idle="-d --detach -dit -itd -td -di -id -dt -dp -dP",
)._replace(counts_itself=True)

# Each name with each subcommand; `_` joins two words.
_RUNNERS = {
    ("uv", "run"): _wrapper(
        "--with --with-requirements --with-editable --python -p --extra --group --only-group"
        " --project --package --directory --env-file --index-url --no-extra"
    )._replace(has_tasks=True),
    ("uv", "tool_run"): _wrapper("--from --with -p --python"),
    ("pipx", "run"): _wrapper("--spec --python --index-url --pip-args"),
    ("poetry pipenv pdm hatch rye pixi", "run"): _wrapper(
        "-p --project -e --env --environment --manifest-path"
    )._replace(has_tasks=True),
    ("conda mamba micromamba", "run"): _wrapper("-n -p -r --name --prefix --root-prefix --cwd"),
    ("npm", "exec"): _wrapper("-p --package", script="-c --call"),
    ("pnpm", "dlx"): _wrapper("--package"),
    ("yarn", "dlx"): _wrapper("-p --package"),
    ("npm bun", "x"): _PLAIN,
    ("asdf bundle pnpm pyenv rbenv yarn", "exec"): _PLAIN,
    ("mise", "exec x"): _DASHES,
    ("direnv", "exec"): _wrapper(operands=1),
    ("nix", "develop shell"): _wrapper(markers="-c --command"),
    ("guix", "shell"): _DASHES,
    ("doppler infisical op", "run"): _DASHES,
    ("dotenvx", "run"): _wrapper("-f -e --env-file"),
    ("dotenv", "run"): _PLAIN,
    ("aws-vault chamber", "exec"): _DASHES,
    ("perf", "stat"): _wrapper("-e -o -r -x -I -C --event --output --repeat"),
    ("perf", "record"): _wrapper("-e -o -F -c -C --event --output --freq --call-graph"),
    ("rr", "record"): _PLAIN,
    ("apptainer singularity", "exec"): _wrapper(
        "-B --bind --env --env-file --pwd -H --home --overlay", 1
    ),
    ("git", "bisect_run submodule_foreach"): _PLAIN,
    ("docker podman nerdctl docker-compose", "exec run"): _CONTAINER,
    ("docker podman nerdctl", "container_exec container_run"): _CONTAINER,
    ("docker podman nerdctl", "compose_exec compose_run"): _CONTAINER,
    ("kubectl oc", "exec"): _DASHES._replace(counts_itself=True),
}
RUNNERS = {
    f"{name} {verb}".replace("_", " "): wrapper
    for (names, verbs), wrapper in _RUNNERS.items()
    for name in names.split()
    for verb in verbs.split()
}
"""Wrappers by name and subcommand."""

GLOBAL_OPTIONS = word_set(
    "-C -c -e -f -p --cwd --dir --directory --env --env-file --environment --file --prefix"
    " --profile --project --project-directory --context --host -H --namespace -n"
)
"""Options that take a value between a runner and its subcommand."""

TASK_NAMES = word_set(
    "all bench build check ci cov dev docs e2e fmt format integration lint serve start test tests"
    " typecheck types unit"
)
"""Words that behind a runner with tasks name a task of the project, not a program."""
