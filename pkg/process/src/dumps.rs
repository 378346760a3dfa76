//! What a process that holds keys and secrets leaves behind when it crashes: nothing.

use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// From now on a crash of this process leaves no picture of its memory behind, neither in a file nor with a program
/// that collects such, and no process but root's can look into it. Programs that it starts are not bound by that: they
/// have the same bound on dumps, which they may raise. A system that refuses is no reason not to run, but is told of.
/// Harmless the second time.
pub fn no_core_dumps() {
    if let Err(error) = forbid() {
        tracing::warn!(%error, "a crash of this process may leave its memory, with keys and secrets, on the disk");
    }
}

fn forbid() -> nix::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_CORE)?;
    setrlimit(Resource::RLIMIT_CORE, 0, hard)?;
    // The bound does not hold where a program collects dumps.
    prctl::set_dumpable(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_dumped_and_the_process_can_still_be_watched() {
        for _ in 0..2 {
            forbid().unwrap();
        }
        assert!(!prctl::get_dumpable().unwrap());
        assert_eq!(getrlimit(Resource::RLIMIT_CORE).unwrap().0, 0);
        let own = format!("/proc/{}", std::process::id());
        for file in ["cmdline", "status", "exe", "ns/net", "fd/0"] {
            let path = format!("{own}/{file}");
            assert!(std::fs::symlink_metadata(&path).is_ok(), "{path}");
        }
        std::fs::read_link(format!("{own}/exe")).unwrap();
        std::fs::read(format!("{own}/environ")).unwrap();
        let bounds = std::process::Command::new("cat").arg("/proc/self/limits").output().unwrap();
        assert!(bounds.status.success(), "programs that it starts run as ever");
    }
}
