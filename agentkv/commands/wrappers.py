"""Programs that run another: where in their words that other one stands. Data for `prefixes`.

Options named here take a value; other words that begin with "-" are flags.
"""

from __future__ import annotations

from typing import NamedTuple


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
    options: str = "",
    operands: int = 0,
    *,
    script: str = "",
    markers: str = "",
    idle: str = "",
    counts: bool = False,
    tasks: bool = False,
) -> Wrapper:
    words = (frozenset(text.split()) for text in (options, script, markers, idle))
    named, scripts, marks, idles = words
    return Wrapper(named, operands, scripts, marks, idles, counts, tasks)


def _each(names: str, verbs: str, wrapper: Wrapper) -> dict[str, Wrapper]:
    """The same wrapper for all these programs and subcommands; `_` joins one of two words."""
    return {
        f"{name} {verb}".replace("_", " "): wrapper
        for name in names.split()
        for verb in verbs.split()
    }


_PLAIN = _wrapper()
_ONE_OPERAND = _wrapper(operands=1)
_TIMEOUT = _wrapper("-k -s --kill-after --signal")
_TIME = _wrapper("-f -o --format --output")
_MPI = _wrapper("-n -np -c -H -N -x -wdir --host -host --hostfile -hostfile --map-by --bind-to")
_TASKS = _wrapper("-p --project -e --env --environment --manifest-path", tasks=True)
_CONDA = _wrapper("-n -p -r --name --prefix --root-prefix --cwd")
_DASHES = _wrapper(markers="--")

_PLAIN_WRAPPERS = (
    "cross-env nohup setsid unbuffer builtin chronic linux32 linux64 firejail tini busybox "
    "dbus-run-session torsocks valgrind catchsegv ccache sccache distcc"
)

WRAPPERS = {
    **dict.fromkeys(_PLAIN_WRAPPERS.split(), _PLAIN),
    **dict.fromkeys(("gosu", "su-exec", "chroot", "setarch", "envdir"), _ONE_OPERAND),
    "sudo": _wrapper("-u -g -h -p -C -U -D -R -r -t -T --user --group --host --prompt --chdir"),
    "doas": _wrapper("-u -C"),
    "su": _wrapper("-s -g -G -w --shell --group", 1, script="-c --command --session-command"),
    "runuser": _wrapper("-s -g -G -w --shell --group", 1, script="-c --command --session-command"),
    "env": _wrapper("-u -C -S --unset --chdir --split-string"),
    "time": _TIME,
    "gtime": _TIME,
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
    "timeout": _TIMEOUT,
    "gtimeout": _TIMEOUT,
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
    "proxychains": _wrapper("-f"),
    "proxychains4": _wrapper("-f"),
    "strace": _wrapper("-o -e -p -s -u -E -a -I -O -S -P -X -b", idle="-p"),
    "ltrace": _wrapper("-o -e -n -s -u -l -a -p", idle="-p"),
    "heaptrack": _wrapper("-o -p", idle="-p"),
    "scan-build": _wrapper("-o"),
    "bear": _wrapper("-o --output"),
    "mpirun": _MPI,
    "mpiexec": _MPI,
    "srun": _wrapper("-n -N -p -t -c -J -A -w -G --ntasks --nodes --partition --time --gres"),
    "npx": _wrapper("-p --package", script="-c --call"),
    "bunx": _wrapper("-p --package"),
    "uvx": _wrapper("--from --with -p --python"),
    "dotenv": _wrapper(markers="--"),
    "env-cmd": _wrapper("-f -e"),
    "nix-shell": _wrapper("-p -A -I", script="--run --command"),
    "ssh": _wrapper(
        "-p -i -o -l -F -J -L -R -D -b -c -E -e -I -m -O -Q -S -W -w",
        1,
        idle="-N -f -fN -Nf -O -Q -W",
        counts=True,
    ),
}
"""Wrappers by name."""

_PUBLISHED = "-p -v -e -w -u -h -l -m -c -a --name --network --net --entrypoint --mount --env"
_CONTAINER = _wrapper(
    f"{_PUBLISHED} --env-file --gpus --platform --cpus --memory --shm-size --user --workdir"
    " --volume --publish --label --add-host --device --ulimit --cap-add --cap-drop --security-opt"
    " --pull --restart --ipc --pid --userns --dns --log-driver --tmpfs --stop-timeout --runtime"
    " --cidfile --volumes-from --link --expose --hostname --attach --index --group-add"
    " --cpuset-cpus --memory-swap --init-path --log-opt --sysctl --uts --ip --domainname",
    1,
    idle="-d --detach -dit -itd -td -di -id -dt -dp -dP",
    counts=True,
)

RUNNERS = {
    "uv run": _wrapper(
        "--with --with-requirements --with-editable --python -p --extra --group --only-group"
        " --project --package --directory --env-file --index-url --no-extra",
        tasks=True,
    ),
    "uv tool run": _wrapper("--from --with -p --python"),
    "pipx run": _wrapper("--spec --python --index-url --pip-args"),
    **_each("poetry pipenv pdm hatch rye pixi", "run", _TASKS),
    **_each("conda mamba micromamba", "run", _CONDA),
    "npm exec": _wrapper("-p --package", script="-c --call"),
    "pnpm dlx": _wrapper("--package"),
    "yarn dlx": _wrapper("-p --package"),
    **_each("npm bun", "x", _PLAIN),
    **_each("asdf bundle pnpm pyenv rbenv yarn", "exec", _PLAIN),
    **_each("mise", "exec x", _DASHES),
    "direnv exec": _ONE_OPERAND,
    **_each("nix", "develop shell", _wrapper(markers="-c --command")),
    "guix shell": _DASHES,
    **_each("doppler infisical op", "run", _DASHES),
    "dotenvx run": _wrapper("-f -e --env-file"),
    "dotenv run": _PLAIN,
    **_each("aws-vault chamber", "exec", _DASHES),
    "perf stat": _wrapper("-e -o -r -x -I -C --event --output --repeat"),
    "perf record": _wrapper("-e -o -F -c -C --event --output --freq --call-graph"),
    "rr record": _PLAIN,
    **_each(
        "apptainer singularity",
        "exec",
        _wrapper("-B --bind --env --env-file --pwd -H --home --overlay", 1),
    ),
    "git bisect run": _PLAIN,
    "git submodule foreach": _PLAIN,
    **_each("docker podman nerdctl docker-compose", "exec run", _CONTAINER),
    **_each("docker podman nerdctl", "container_exec container_run", _CONTAINER),
    **_each("docker podman nerdctl", "compose_exec compose_run", _CONTAINER),
    **_each("kubectl oc", "exec", _wrapper(markers="--", counts=True)),
}
"""Wrappers by name and subcommand."""

GLOBAL_OPTIONS = frozenset(
    """
    -C -c -e -f -p --cwd --dir --directory --env --env-file --environment --file --prefix --profile
    --project --project-directory --context --host -H --namespace -n
    """.split()  # noqa: SIM905 - the list reads best as text
)
"""Options that take a value between a runner and its subcommand."""

TASK_NAMES = frozenset(
    """
    all bench build check ci cov dev docs e2e fmt format integration lint serve start test tests
    typecheck types unit
    """.split()  # noqa: SIM905 - the list reads best as text
)
"""Words that behind a runner with tasks name a task of the project, not a program."""
