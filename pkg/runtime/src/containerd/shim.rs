//! The shims (supervisors) that containerd starts, one per container, as found in the process table.
//!
//! Each listens on its own socket, which it leaves behind when it is killed. The socket's name follows from
//! the command line (`SocketAddress` in containerd's `runtime/v2/shim/util_unix.go`, 1.6 and 1.7).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::container::ContainerId;
use crate::host_process::is_of_host_root;
use crate::pidfd::Pidfd;

const SHIM_PROGRAM: &str = "containerd-shim-runc-v2";
/// Name of the process in the kernel: the first 15 bytes.
const COMM_NAME: &str = "containerd-shim";
/// Directory of the sockets of all shims of a machine.
const SOCKET_DIR: &str = "/run/containerd/s";

pub(super) struct Shim {
    /// Its container.
    pub id: ContainerId,
    pub pid: u32,
    /// Safe against reuse of process ids.
    pub pidfd: Pidfd,
    /// Path of its socket.
    pub socket: PathBuf,
}

impl Shim {
    /// Whether both are the same process. A pid is reused only after its process ended, and then the handle
    /// says so.
    pub fn is_same_process(&self, other: &Self) -> bool {
        self.pid == other.pid && self.id == other.id && self.pidfd.is_alive() && other.pidfd.is_alive()
    }
}

/// The shims of one namespace of a containerd, by their command lines.
pub(super) fn find_all(socket: &Path, namespace: &str) -> Vec<Shim> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| read(pid, socket, namespace)).collect()
}

fn read(pid: u32, socket: &Path, namespace: &str) -> Option<Shim> {
    // The name first: it needs no access to the process's memory, which the kernel may lock for long.
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    if name.trim_ascii_end() != COMM_NAME.as_bytes() {
        return None;
    }
    // What is read after opening the handle is about its process, if it is alive afterwards.
    let pidfd = Pidfd::open(pid).ok()?;
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words: Vec<&[u8]> = words.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
    let (id, address) = parse_command_line(&words, socket, namespace)?;
    let socket = socket_path(address, namespace, &id);
    (is_of_host_root(pid) && pidfd.is_alive()).then_some(Shim { id, pid, pidfd, socket })
}

/// Socket path of a container's shim that was started with this address of containerd.
fn socket_path(address: &str, namespace: &str, id: &ContainerId) -> PathBuf {
    let name = Sha256::digest(format!("{address}/{namespace}/{id}"));
    let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    Path::new(SOCKET_DIR).join(name)
}

/// The container in the command line of a shim that serves `namespace` of the containerd at `socket`, and the
/// address given there. `... start` and `... delete` are short-lived commands and do not match.
fn parse_command_line<'a>(
    words: &[&'a [u8]],
    socket: &Path,
    namespace: &str,
) -> Option<(ContainerId, &'a str)> {
    let (program, arguments) = words.split_first()?;
    let name = Path::new(OsStr::from_bytes(program)).file_name()?;
    if name != SHIM_PROGRAM || arguments.iter().any(|word| matches!(*word, b"start" | b"delete")) {
        return None;
    }
    let value = |flag: &str| -> Option<&'a str> {
        let at = arguments.iter().position(|word| *word == flag.as_bytes())?;
        std::str::from_utf8(arguments.get(at + 1)?).ok()
    };
    let same = |a: &Path, b: &Path| {
        a == b || fs::canonicalize(a).ok().is_some_and(|a| fs::canonicalize(b).ok() == Some(a))
    };
    let address = value("-address")?;
    if value("-namespace")? != namespace || !same(Path::new(address), socket) {
        return None;
    }
    Some((ContainerId::parse(value("-id")?).ok()?, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_shims_are_recognized() {
        let check = |line: &str, want: Option<&str>| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let found = parse_command_line(&words, Path::new("/run/x.sock"), "warren");
            assert_eq!(found.as_ref().map(|(id, _)| id.as_str()), want, "{line}");
        };
        let shim = "/usr/bin/containerd-shim-runc-v2 -namespace warren -id a.1 -address /run/x.sock";
        check(shim, Some("a.1"));
        check(&format!("{shim} start"), None);
        check(&format!("{shim} delete"), None);
        check(&shim.replace("warren", "moby"), None);
        check(&shim.replace("/run/x.sock", "/run/y.sock"), None);
        check(&shim.replace("shim-runc-v2", "shim-other"), None);
        check(&shim.replace("a.1", "../a"), None);
        check("/usr/bin/containerd-shim-runc-v2 -namespace warren -id", None);
        check("bash", None);
        assert_eq!(SHIM_PROGRAM[..COMM_NAME.len()], *COMM_NAME);
    }

    #[test]
    fn socket_path_matches_containerd() {
        // As `containerd-shim-runc-v2 start` of 1.6.20 printed it.
        let want = "/run/containerd/s/810df5f0d6e2e7a30404a80292a06f437c613986a78a1b47f86f011c5df2457a";
        let id = ContainerId::parse("a.1").unwrap();
        assert_eq!(socket_path("/run/x.sock", "warren", &id), Path::new(want));
    }

    #[test]
    fn reused_pid_is_another_process() {
        let shim = |pid: u32, name: &str| Shim {
            id: ContainerId::parse(name).unwrap(),
            pid,
            pidfd: Pidfd::open(pid).unwrap(),
            socket: PathBuf::new(),
        };
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (one, same, other) = (shim(child.id(), "a"), shim(child.id(), "a"), shim(child.id(), "b"));
        assert!(
            one.is_same_process(&same)
                && !one.is_same_process(&other)
                && !one.is_same_process(&shim(std::process::id(), "a"))
        );
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!one.is_same_process(&same), "whatever has the number now");
    }
}
