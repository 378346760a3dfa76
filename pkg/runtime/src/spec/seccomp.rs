//! The seccomp profile of a container: Docker's default profile for the container's capabilities, or one of its user.

mod calls;
mod own;

use std::collections::BTreeSet;

use oci_spec::runtime as oci;
use oci_spec::runtime::{LinuxSeccompAction as Action, LinuxSeccompOperator as Operator};

use super::capabilities::CapabilitySet;

pub(super) use own::resolve;

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
/// `clone` flags that create namespaces: NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
const NAMESPACE_FLAGS: u64 = 0x7E02_0000;
/// Harmless values of `personality`: Linux, 32-bit addresses, UNAME26, both, and the query.
const PERSONALITIES: [u64; 5] = [0x0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];
/// Sockets to the hypervisor are not namespaced.
const AF_VSOCK: u64 = 40;

/// Architectures of programs in containers under the default profile. libseccomp compiles the list of calls
/// at every start, and each additional architecture costs the same again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllowedArchitectures {
    /// The machine's own; 32-bit programs on a 64-bit machine are killed.
    #[default]
    Native,
    /// Also the compatible 32-bit architectures of the processor.
    Compatible,
}

/// The profile for these capabilities.
pub(super) fn profile(granted: CapabilitySet, architectures: AllowedArchitectures) -> oci::LinuxSeccomp {
    let mut rules = vec![allow(names(granted, architectures), None)];
    for personality in PERSONALITIES {
        rules.push(allow(["personality"], Some(argument(personality, None, Operator::ScmpCmpEq))));
    }
    rules.push(allow(["socket"], Some(argument(AF_VSOCK, None, Operator::ScmpCmpNe))));
    if !granted.has(oci::Capability::SysAdmin) {
        rules.push(allow(["clone"], Some(argument(NAMESPACE_FLAGS, Some(0), Operator::ScmpCmpMaskedEq))));
        // Its flags are in memory, which a filter cannot read. With ENOSYS programs fall back to clone.
        let mut clone3 = oci::LinuxSyscall::default();
        clone3
            .set_names(vec!["clone3".to_owned()])
            .set_action(Action::ScmpActErrno)
            .set_errno_ret(Some(ENOSYS));
        rules.push(clone3);
    }
    let mut profile = oci::LinuxSeccomp::default();
    profile
        .set_default_action(Action::ScmpActErrno)
        .set_default_errno_ret(Some(EPERM))
        .set_architectures(list(architectures))
        .set_syscalls(Some(rules));
    profile
}

/// Calls that are allowed with any arguments.
fn names(granted: CapabilitySet, architectures: AllowedArchitectures) -> BTreeSet<&'static str> {
    use calls::{ARM, BY_CAPABILITY, CLOCKS_AND_IPC, EVENTS, FILES, MEMORY, NETWORK, ONLY_32_BIT, PROCESSES};
    let mut lists = vec![FILES, EVENTS, MEMORY, PROCESSES, CLOCKS_AND_IPC, NETWORK];
    if cfg!(target_arch = "aarch64") {
        lists.push(ARM);
    }
    if architectures == AllowedArchitectures::Compatible {
        lists.push(ONLY_32_BIT);
    }
    lists.extend(BY_CAPABILITY.iter().filter(|(cap, _)| granted.has(*cap)).map(|(_, names)| *names));
    lists.into_iter().flatten().copied().collect()
}

fn list(architectures: AllowedArchitectures) -> Option<Vec<oci::Arch>> {
    let mut list = match std::env::consts::ARCH {
        "x86_64" => vec![oci::Arch::ScmpArchX86_64, oci::Arch::ScmpArchX86, oci::Arch::ScmpArchX32],
        "aarch64" => vec![oci::Arch::ScmpArchAarch64, oci::Arch::ScmpArchArm],
        "riscv64" => vec![oci::Arch::ScmpArchRiscv64],
        // Without a list libseccomp uses its own architecture.
        _ => return None,
    };
    if architectures == AllowedArchitectures::Native {
        list.truncate(1);
    }
    Some(list)
}

fn allow(
    names: impl IntoIterator<Item = &'static str>,
    argument: Option<oci::LinuxSeccompArg>,
) -> oci::LinuxSyscall {
    let mut rule = oci::LinuxSyscall::default();
    rule.set_names(names.into_iter().map(str::to_owned).collect())
        .set_action(Action::ScmpActAllow)
        .set_args(argument.map(|argument| vec![argument]));
    rule
}

/// A condition on the call's first argument.
fn argument(value: u64, masked: Option<u64>, operator: Operator) -> oci::LinuxSeccompArg {
    let mut argument = oci::LinuxSeccompArgBuilder::default().index(0usize).value(value).op(operator);
    if let Some(masked) = masked {
        argument = argument.value_two(masked);
    }
    argument.build().expect("index, value and operator are set")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: u64 = 0xa804_25fb;
    const SYS_ADMIN: u64 = 1 << 21;

    fn allowed(mask: u64) -> Vec<String> {
        let rules =
            profile(CapabilitySet::from_mask(mask), AllowedArchitectures::Native).syscalls().clone().unwrap();
        rules.iter().filter(|r| r.action() == Action::ScmpActAllow).flat_map(|r| r.names().clone()).collect()
    }

    #[test]
    #[rustfmt::skip]
    fn privileged_syscalls_need_capability() {
        let reaching = [
            (&["mount", "umount2", "unshare", "setns", "fsopen", "sethostname", "quotactl"][..], 21),
            (&["open_by_handle_at"], 2), (&["init_module", "finit_module", "delete_module"], 16),
            (&["iopl", "ioperm"], 17), (&["chroot"], 18), (&["kcmp"], 19), (&["acct"], 20), (&["reboot"], 22),
            (&["mbind", "set_mempolicy"], 23), (&["settimeofday", "clock_settime"], 25), (&["vhangup"], 26),
            (&["syslog"], 34), (&["perf_event_open"], 38), (&["bpf"], 39),
        ];
        for (calls, number) in reaching {
            for call in calls {
                let has = |mask: u64| allowed(mask).iter().any(|name| name == call);
                assert!(has(1 << number), "{call} with {number}");
                assert!(!has(DEFAULT & !(1 << number)), "{call} without {number}");
            }
        }
    }

    #[test]
    fn dangerous_syscalls_are_never_allowed() {
        let all = allowed(u64::MAX);
        for call in [
            "pivot_root",
            "keyctl",
            "add_key",
            "request_key",
            "kexec_load",
            "userfaultfd",
            "swapon",
            "io_uring_setup",
            "nfsservctl",
        ] {
            assert!(!all.iter().any(|name| name == call), "{call}");
        }
    }

    #[test]
    fn namespace_flags_need_capability() {
        let rules = |mask| {
            profile(CapabilitySet::from_mask(mask), AllowedArchitectures::Native).syscalls().clone().unwrap()
        };
        let of = |mask: u64, call: &str| {
            let mut rules = rules(mask).into_iter();
            rules.find(|rule| rule.names().iter().any(|name| name == call)).unwrap()
        };
        assert!(of(DEFAULT, "clone").args().is_some());
        assert_eq!(of(DEFAULT, "clone3").errno_ret(), Some(ENOSYS));
        for call in ["clone", "clone3"] {
            let rule = of(SYS_ADMIN, call);
            assert!(rule.args().is_none() && rule.action() == Action::ScmpActAllow, "{call}");
        }
    }

    #[test]
    fn other_architectures_are_opt_in() {
        let profile = |architectures| profile(CapabilitySet::from_mask(DEFAULT), architectures);
        let (native, compatible) =
            (profile(AllowedArchitectures::Native), profile(AllowedArchitectures::Compatible));
        let count = |profile: &oci::LinuxSeccomp| profile.architectures().as_ref().map_or(0, Vec::len);
        assert!(count(&native) <= 1 && count(&compatible) >= count(&native));
        let knows = |profile: &oci::LinuxSeccomp| {
            let rules = profile.syscalls().clone().unwrap();
            rules.iter().any(|rule| rule.names().iter().any(|name| name == "socketcall"))
        };
        assert!(!knows(&native) && knows(&compatible));
    }

    #[test]
    fn syscalls_are_listed_once() {
        let calls = allowed(DEFAULT);
        let unique: BTreeSet<&String> = calls.iter().collect();
        assert_eq!(calls.len() - unique.len(), PERSONALITIES.len() - 1);
    }
}
