//! The supervisors that containerd starts, one for each container, as the process table shows them.
//!
//! Each listens on a socket of its own, which it leaves behind when it is killed. Its name is made of what the
//! command line says (`SocketAddress` in containerd's `runtime/v2/shim/util_unix.go`, 1.6 and 1.7).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::container::ContainerId;
use crate::pidfd::Pidfd;

const PROGRAM: &str = "containerd-shim-runc-v2";
/// What the kernel calls a process that runs it: the first 15 bytes.
const NAME: &str = "containerd-shim";
/// Where the sockets of all supervisors of a machine lie.
const SOCKETS: &str = "/run/containerd/s";

/// One supervisor.
pub(super) struct Shim {
    /// Whose it is.
    pub id: ContainerId,
    pub pid: u32,
    /// Cannot come to mean another process.
    pub pidfd: Pidfd,
    /// The file of its socket.
    pub socket: PathBuf,
}

impl Shim {
    /// Whether both are the same process. A number is given to another one only after the first is gone, and
    /// then its handle says so.
    pub fn is(&self, other: &Self) -> bool {
        self.pid == other.pid && self.id == other.id && self.pidfd.is_alive() && other.pidfd.is_alive()
    }
}

/// The supervisors of one containerd's namespace, by their command lines.
pub(super) fn all(socket: &Path, namespace: &str) -> Vec<Shim> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| read(pid, socket, namespace)).collect()
}

fn read(pid: u32, socket: &Path, namespace: &str) -> Option<Shim> {
    // The name first: it is had without the process's memory, which the kernel may lock for long.
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    if name.trim_ascii_end() != NAME.as_bytes() {
        return None;
    }
    // As with any handle: what is read after it was opened is about its process, if that is alive afterwards.
    let pidfd = Pidfd::open(pid).ok()?;
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words: Vec<&[u8]> = words.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
    let (id, address) = supervised(&words, socket, namespace)?;
    let socket = listens_at(address, namespace, &id);
    pidfd.is_alive().then_some(Shim { id, pid, pidfd, socket })
}

/// What a supervisor of this container listens at that was told this address of containerd's.
fn listens_at(address: &str, namespace: &str, id: &ContainerId) -> PathBuf {
    let name = Sha256::digest(format!("{address}/{namespace}/{id}"));
    let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    Path::new(SOCKETS).join(name)
}

/// The container on the command line of a supervisor that serves `namespace` of the containerd at `socket`,
/// and the address of that as it was told. `... start` and `... delete` are short-lived errands of
/// containerd's and not meant.
fn supervised<'a>(words: &[&'a [u8]], socket: &Path, namespace: &str) -> Option<(ContainerId, &'a str)> {
    let (program, arguments) = words.split_first()?;
    let name = Path::new(OsStr::from_bytes(program)).file_name()?;
    if name != PROGRAM || arguments.iter().any(|word| matches!(*word, b"start" | b"delete")) {
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
    fn only_our_own_supervisors_are_recognised() {
        let check = |line: &str, want: Option<&str>| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let found = supervised(&words, Path::new("/run/x.sock"), "warren");
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
        assert_eq!(PROGRAM[..NAME.len()], *NAME);
    }

    #[test]
    fn a_socket_is_where_containerd_puts_it() {
        // As `containerd-shim-runc-v2 start` of 1.6.20 printed it.
        let want = "/run/containerd/s/810df5f0d6e2e7a30404a80292a06f437c613986a78a1b47f86f011c5df2457a";
        let id = ContainerId::parse("a.1").unwrap();
        assert_eq!(listens_at("/run/x.sock", "warren", &id), Path::new(want));
    }

    #[test]
    fn a_number_is_not_a_process() {
        let shim = |pid: u32, name: &str| Shim {
            id: ContainerId::parse(name).unwrap(),
            pid,
            pidfd: Pidfd::open(pid).unwrap(),
            socket: PathBuf::new(),
        };
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (one, same, other) = (shim(child.id(), "a"), shim(child.id(), "a"), shim(child.id(), "b"));
        assert!(one.is(&same) && !one.is(&other) && !one.is(&shim(std::process::id(), "a")));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!one.is(&same), "whatever has the number now");
    }
}
