"""A stand-in for Apptainer's command line, for machines where there is no such program: `python -I -S apptainer_program.py
CONFIGURATION …` behaves as `apptainer …` does for what Kiseki asks of it.

An instance is a bubblewrap with the image's root filesystem under an overlay; `exec` joins its namespaces. A SIF image is a tar
here, and a registry is a folder: `NAME.tar` for an image, and `NAME.words` with one line per pull that is to fail first, which
is what it fails with ("/" and ":" in names are "_"). What Kiseki asked is appended to the file `calls` of the configuration.
`refuse` there: flag → words, for what this installation does not allow.
"""

# Without pathlib, which would take half of its time: it is started for every command.
# ruff: noqa: PTH102, PTH103, PTH107, PTH110, PTH111, PTH113, PTH118, PTH119, PTH120, PTH207, SIM115
from __future__ import annotations

import ctypes
import glob
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import Any, NoReturn

VALUED = {
    "--add-caps", "--bind", "--cpus", "--create-dir", "--home", "--memory", "--memory-swap", "--network", "--no-mount",
    "--overlay", "--pids-limit", "--pwd", "--size",
}  # fmt: skip
PLAIN = {
    "--cleanenv", "--containall", "--fakeroot", "--force", "--json", "--net", "--no-home", "--no-privs", "--sparse",
}  # fmt: skip
CAPABILITIES = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7}
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
APPINIT = "/.singularity.d/busybox"
INIT = "trap : TERM INT HUP; while :; do sleep 100000 & wait $!; done"
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
libc = ctypes.CDLL(None, use_errno=True)


class Parsed:
    def __init__(self, words: list[str], *, whole: bool) -> None:
        """With `whole`, flags are understood behind the first argument too."""
        self.flags: dict[str, list[str]] = {}
        self.rest: list[str] = []
        words = list(words)
        while words:
            word = words.pop(0)
            name, equals, value = word.partition("=")
            if not word.startswith("-"):
                self.rest.append(word)
                if not whole:
                    self.rest += words
                    return
            elif name in VALUED:
                self.flags.setdefault(name, []).append(value if equals else words.pop(0))
            elif name in PLAIN:
                self.flags[name] = [""]
            else:
                print(f"Error for command: unknown flag: {name}", file=sys.stderr)
                sys.exit(1)

    def get(self, name: str) -> str:
        return self.flags.get(name, [""])[-1]

    def has(self, name: str) -> bool:
        return name in self.flags


def fatal(words: str) -> NoReturn:
    print(f"FATAL:   {words}", file=sys.stderr, flush=True)
    os._exit(255)


def main() -> None:
    configuration: dict[str, Any] = json.loads(open(sys.argv[1]).read())
    words = sys.argv[2:]
    with open(configuration["calls"], "a") as calls:
        calls.write(json.dumps(words) + "\n")
    while words and words[0] in ("--silent", "--quiet"):
        words.pop(0)
    command = words.pop(0) if words else ""
    if command in ("instance", "overlay") and words:
        command += f" {words.pop(0)}"
    if command == "--version":
        print("apptainer version 1.4.5-standin")
    elif command == "exec":
        enter(Parsed(words, whole=False))
    elif command in COMMANDS:
        COMMANDS[command](Parsed(words, whole=True), configuration)
    else:
        print(f"Error: unknown command {command!r} for apptainer", file=sys.stderr)
        sys.exit(1)


# Images


def pull(call: Parsed, configuration: dict[str, Any]) -> None:
    target, reference = call.rest
    if os.path.exists(target) and not call.has("--force"):
        fatal(f"Image file already exists: {target!r} - will not overwrite")
    kind, _, name = reference.partition("://")
    if kind != "docker":
        fatal(f"Unsupported transport type: {kind}")
    base = os.path.join(configuration["registry"], re.sub("[/:]", "_", name))
    print("INFO:    Converting OCI blobs to SIF format", file=sys.stderr, flush=True)
    if os.path.exists(f"{base}.words"):
        first, *others = open(f"{base}.words").read().splitlines()
        open(f"{base}.words", "w").write("\n".join(others)) if others else os.remove(f"{base}.words")
        if first == "hang":
            time.sleep(1000)
        fatal(f"While making image from oci registry: error fetching image: {first}")
    if not os.path.exists(f"{base}.tar"):
        fatal(
            "While making image from oci registry: error fetching image: while building SIF from layers: conveyor failed to "
            f"get: reading manifest latest in {name}: manifest unknown: manifest unknown"
        )
    print("INFO:    Creating SIF file...", file=sys.stderr, flush=True)
    shutil.copyfile(f"{base}.tar", target)


def overlay_create(call: Parsed, configuration: dict[str, Any]) -> None:
    size, path = int(call.get("--size") or 64), call.rest[0]
    if words := configuration["refuse"].get("overlay create"):
        fatal(words)
    if size < 64:
        fatal("image size must be equal or greater than 64 MiB")
    with tempfile.TemporaryDirectory(dir=os.environ.get("APPTAINER_TMPDIR")) as layout:
        for folder in ("upper", "work", *(f"upper/{made}" for made in call.flags.get("--create-dir", []))):
            os.makedirs(os.path.join(layout, folder), 0o755)
        with open(path, "wb") as image:
            image.truncate(size << 20)
        made = subprocess.run(["/sbin/mkfs.ext3", "-q", "-d", layout, path], capture_output=True, text=True)
        if made.returncode:
            fatal(f"while creating ext3 partition in {path}: {made.stderr}")


# Instances


def record_of(name: str) -> str:
    user = pwd.getpwuid(os.getuid()).pw_name
    folder = os.environ.get("APPTAINER_CONFIGDIR") or os.path.expanduser("~/.apptainer")
    return os.path.join(folder, "instances", "app", socket.gethostname(), user, name, f"{name}.json")


def instances(name: str) -> list[dict[str, Any]]:
    """The instances whose name matches. Forgets those whose process is gone."""
    found = []
    for path in glob.glob(record_of(name)):
        record = json.loads(open(path).read())
        if alive(record["ppid"]):
            found.append(record)
        else:
            shutil.rmtree(os.path.dirname(path), ignore_errors=True)
    return found


def alive(pid: int) -> bool:
    """Not for a zombie: where this was written, the first process takes seconds to see to those."""
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def start(call: Parsed, configuration: dict[str, Any]) -> None:
    image, name, *_ = call.rest
    if not re.fullmatch(r"[a-zA-Z0-9._-]+", name):
        fatal(f"while checking instance name: {name} is not a valid instance name")
    if instances(name):
        fatal(f"instance {name} already exists")
    for flag, words in configuration["refuse"].items():
        if call.has(flag):
            fatal(words)
    if not os.path.exists(image):
        fatal(f"could not open image {image}: failed to retrieve path for {image}: lstat {image}: no such file or directory")
    log = os.path.join(os.path.dirname(os.path.dirname(record_of(name))).replace("/app/", "/logs/"), f"{name}.err")
    os.makedirs(os.path.dirname(log), exist_ok=True)
    ready, tell = os.pipe()
    if os.fork() == 0:
        os.close(ready)
        os.setsid()
        errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open("/dev/null", os.O_RDWR)
        for target, source in ((0, nothing), (1, nothing), (2, errors)):
            os.dup2(source, target)
        keep(call, configuration, image, name, log, tell)
        os._exit(0)
    os.close(tell)
    if os.read(ready, 1) != b"+":
        print(open(log).read(), file=sys.stderr)
        fatal("while executing starter: failed to start instance: while running starter: exit status 255")
    print("INFO:    instance started successfully", file=sys.stderr)


def keep(call: Parsed, configuration: dict[str, Any], image: str, name: str, log: str, tell: int) -> None:
    """Be the instance's parent, in a mount namespace of its own."""
    place = tempfile.mkdtemp(prefix="rootfs-", dir=os.environ.get("APPTAINER_TMPDIR"))
    root = image
    if os.path.isfile(image):
        try:
            with tarfile.open(image) as tar:
                tar.extractall(os.path.join(place, "root"), filter="tar")
        except tarfile.TarError:
            fatal(f"image format not recognized: {image}")
        root = os.path.join(place, "root")
    overlay = call.get("--overlay")
    if os.path.isfile(overlay):
        if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
            fatal(f"while mounting {overlay}: operation not permitted")
        mounted = os.path.join(place, "overlay")
        os.mkdir(mounted)
        done = subprocess.run(["/bin/mount", "-o", "loop,nodev", overlay, mounted], capture_output=True, text=True)
        if done.returncode:
            fatal(f"while mounting {overlay}: {done.stderr}")
        overlay = mounted
    elif overlay:
        for part in ("upper", "work"):
            os.makedirs(os.path.join(overlay, part), exist_ok=True)
    information, told = os.pipe()
    os.set_inheritable(told, True)
    words = [configuration["bwrap"], "--info-fd", str(told), "--as-pid-1", "--unshare-pid", "--unshare-ipc"]
    if os.getuid():
        words += ["--unshare-user"]
    if call.has("--fakeroot"):
        words += ["--uid", "0", "--gid", "0"]
    if call.get("--network") == "none":
        words += ["--unshare-net"]
    if overlay:
        words += ["--overlay-src", root, "--overlay", f"{overlay}/upper", f"{overlay}/work", "/"]
    else:
        words += ["--ro-bind", root, "/"]
    hidden = call.get("--no-mount").split(",")
    words += ["--proc", "/proc", "--dev", "/dev"]
    words += ["--ro-bind", "/sys", "/sys"] if "sys" not in hidden else []
    for folder in ("/tmp", "/var/tmp") if "tmp" not in hidden else ():
        words += ["--tmpfs", folder]
    words += ["--ro-bind", configuration["busybox"], APPINIT]
    for bind in call.flags.get("--bind", []):
        source, target, *options = bind.split(":")
        words += ["--ro-bind" if options == ["ro"] else "--bind", source, target]
    bwrap = subprocess.Popen([*words, "--", APPINIT, "sh", "-c", INIT], pass_fds=[told])
    os.close(told)
    said = b""
    while data := os.read(information, 4096):
        said += data
    try:
        pid = json.loads(said)["child-pid"]
        record = {
            "pid": pid, "ppid": os.getpid(), "name": name, "image": image, "fakeroot": call.has("--fakeroot"),
            "userns": bool(os.getuid()), "logErrPath": log, "logOutPath": log,
            "home": call.get("--home").split(":")[-1] or pwd.getpwuid(os.getuid()).pw_dir,
        }  # fmt: skip
        # It has become the container's init once it has made its namespaces and given up the old root.
        while bwrap.poll() is None and not open(f"/proc/{pid}/cmdline", "rb").read().startswith(APPINIT.encode()):
            time.sleep(0.002)
        if bwrap.poll() is None:
            os.makedirs(os.path.dirname(record_of(name)), exist_ok=True)
            open(record_of(name), "w").write(json.dumps(record))
            os.write(tell, b"+")
    except (ValueError, OSError):
        pass
    os.close(tell)
    bwrap.wait()
    if os.path.isfile(call.get("--overlay")):
        libc.umount2(os.path.join(place, "overlay").encode(), 2)
    shutil.rmtree(place, ignore_errors=True)
    shutil.rmtree(os.path.dirname(record_of(name)), ignore_errors=True)


def list_instances(call: Parsed, _: dict[str, Any]) -> None:
    found = [
        {"instance": each["name"], "pid": each["pid"], "img": each["image"], "ip": ""}
        | {key: each[key] for key in ("logErrPath", "logOutPath")}
        for each in instances(call.rest[0] if call.rest else "*")
    ]
    print(json.dumps({"instances": found}))


def stop(call: Parsed, _: dict[str, Any]) -> None:
    found = instances(call.rest[0])
    if not found:
        fatal("no instance found")
    for each in found:
        os.kill(each["pid"], signal.SIGKILL if call.has("--force") else signal.SIGINT)
    while any(alive(each["ppid"]) for each in found):
        time.sleep(0.01)


def enter(call: Parsed) -> None:
    """exec: run a program in an instance."""
    image, *words = call.rest
    if not image.startswith("instance://"):
        fatal(f"could not open image {image}")
    name = image.removeprefix("instance://")
    found = instances(name)
    if not found:
        fatal(f"no instance found with name {name}")
    record = found[0]
    environment = {
        "PATH": DEFAULT_PATH,
        "HOME": record["home"],
        "APPTAINER_CONTAINER": record["image"],
        "APPTAINER_NAME": os.path.basename(record["image"]),
    }
    if not call.has("--cleanenv"):
        environment = {**os.environ, **environment}
    namespaces = ["mnt", "pid", "ipc", "net"]
    if record["userns"]:
        namespaces.insert(0, "user")
    try:
        descriptors = [os.open(f"/proc/{record['pid']}/ns/{kind}", os.O_RDONLY) for kind in namespaces]
    except OSError as error:
        fatal(f"could not open proc directory: {error}")
    for descriptor in descriptors:
        if libc.setns(descriptor, 0):
            fatal(f"while joining a namespace of {name}: {os.strerror(ctypes.get_errno())}")
        os.close(descriptor)
    for file in sorted(glob.glob("/.singularity.d/env/*.sh")):
        environment.update(re.findall(r'^export (\w+)="?(.*?)"?$', open(file).read(), re.MULTILINE))
    for variable, value in os.environ.items():
        if variable.startswith(("APPTAINERENV_", "SINGULARITYENV_")):
            environment[variable.partition("_")[2]] = value
    child = os.fork()
    if child == 0:
        run(call, words, environment, record)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(status if status >= 0 else 128 - status)


def run(call: Parsed, words: list[str], environment: dict[str, str], record: dict[str, Any]) -> NoReturn:
    try:
        os.chdir(call.get("--pwd") or "/")
    except OSError as error:
        fatal(f"failed to set working directory: {error}")
    if record["fakeroot"]:
        os.setuid(0)
    elif os.getuid() == 0 and call.has("--no-privs"):
        kept = {CAPABILITIES[word.removeprefix("CAP_")] for word in call.get("--add-caps").split(",") if word}
        for capability in range(64):
            if capability not in kept:
                libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them.
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(words[0], words, environment)
    except OSError:
        fatal(f'"{words[0]}": executable file not found in $PATH')


COMMANDS = {
    "pull": pull,
    "overlay create": overlay_create,
    "instance start": start,
    "instance list": list_instances,
    "instance stop": stop,
}
if __name__ == "__main__":
    main()
