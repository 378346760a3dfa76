//! Disables core dumps of processes that hold keys and secrets.

use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Disables core dumps of this process, both to a file and to a program that collects them, and keeps
/// processes without root from reading its memory. Programs that it starts are not dumpable-restricted;
/// they inherit the limit on dumps, which they may raise. Logs a warning if the system refuses.
/// Idempotent.
pub fn disable_core_dumps() {
    if let Err(error) = set_limits() {
        tracing::warn!(%error, "a crash of this process may leave its memory, with keys and secrets, on the disk");
    }
}

fn set_limits() -> nix::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_CORE)?;
    setrlimit(Resource::RLIMIT_CORE, 0, hard)?;
    // The resource limit does not apply where a program collects dumps.
    prctl::set_dumpable(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_dumps_are_disabled_and_process_is_inspectable() {
        for _ in 0..2 {
            set_limits().unwrap();
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
