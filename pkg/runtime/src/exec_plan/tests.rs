use nix::libc::{
    SYS_clone, SYS_close, SYS_close_range, SYS_faccessat2, SYS_fchmodat, SYS_getpid, SYS_mkdirat,
    SYS_openat2, SYS_read, SYS_socket, SYS_write,
};

use warren_types::SeccompProfile;

use super::*;
use crate::spec::default_profile;

const EPERM_RETURNED: u32 = SECCOMP_RET_ERRNO | EPERM;
const ENOSYS_RETURNED: u32 = SECCOMP_RET_ERRNO | ENOSYS;
/// Architectures (linux/audit.h).
const MACHINE: u32 = if cfg!(target_arch = "aarch64") { 0xc000_00b7 } else { 0xc000_003e };
const I386: u32 = 0x4000_0003;

/// What the kernel gets of the filter for a call.
fn run(program: &[u8], call: i64, arguments: [u64; 6]) -> u32 {
    run_as(MACHINE, program, call, arguments)
}

fn run_as(machine: u32, program: &[u8], call: i64, arguments: [u64; 6]) -> u32 {
    // `struct seccomp_data`.
    let mut data = i32::try_from(call).unwrap().to_ne_bytes().to_vec();
    data.extend(machine.to_ne_bytes());
    data.extend(0u64.to_ne_bytes());
    arguments.iter().for_each(|argument| data.extend(argument.to_ne_bytes()));
    let (mut place, mut value) = (0, 0);
    loop {
        let instruction = &program[8 * place..8 * place + 8];
        let code = u16::from_ne_bytes([instruction[0], instruction[1]]);
        let (yes, no) = (usize::from(instruction[2]), usize::from(instruction[3]));
        let k = u32::from_ne_bytes(instruction[4..].try_into().unwrap());
        place += 1;
        place += match code {
            LOAD => {
                value = u32::from_ne_bytes(data[k as usize..][..4].try_into().unwrap());
                0
            }
            // Bits of a mask.
            0x54 => {
                value &= k;
                0
            }
            JUMP => k as usize,
            JUMP_IF_EQUAL => [no, yes][usize::from(value == k)],
            JUMP_IF_ABOVE => [no, yes][usize::from(value > k)],
            JUMP_IF_NOT_BELOW => [no, yes][usize::from(value >= k)],
            RETURN => return k,
            other => panic!("unknown instruction {other:#x}"),
        };
    }
}

fn compiled_profile(json: Value) -> Vec<u8> {
    let profile: oci::LinuxSeccomp = serde_json::from_value(json).unwrap();
    let mut compiled = filters(&profile).unwrap();
    assert_eq!(compiled.len(), 1, "a profile is one filter");
    compiled.remove(0)
}

#[test]
fn default_profile_compiles() {
    let profile = default_profile();
    let sources = sources(&profile, &call_numbers(&profile)).unwrap();
    assert_eq!(sources.len(), 2, "what has no rule, and clone3, which is not implemented");
    assert_eq!(sources[1]["filter"]["match_action"]["errno"], 38);
    let compiled = filters(&default_profile()).unwrap();
    assert_eq!(compiled.len(), 1);
    assert!(compiled[0].len().is_multiple_of(8) && compiled[0].len() / 8 <= MAX_INSTRUCTIONS);
    assert_eq!(filters(&default_profile()).unwrap(), compiled);
    let of = |call, first| run(&compiled[0], call, [first, 0, 0, 0, 0, 0]);
    let allowed = SECCOMP_RET_ALLOW;
    assert_eq!(of(SYS_read, 0), allowed);
    assert_eq!(of(nix::libc::SYS_keyctl, 0), EPERM_RETURNED);
    assert_eq!(of(nix::libc::SYS_clone3, 0), ENOSYS_RETURNED);
    assert_eq!((of(SYS_socket, 2), of(SYS_socket, 40)), (allowed, EPERM_RETURNED));
    assert_eq!((of(SYS_clone, 17), of(SYS_clone, 0x1000_0000 | 17)), (allowed, EPERM_RETURNED));
}

#[test]
fn calls_are_refused_from_a_list() {
    let filter = compiled_profile(json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [
            { "names": ["mkdirat", "no_such_call"], "action": "SCMP_ACT_ERRNO" },
            { "names": ["fchmodat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 13,
              "args": [{ "index": 2, "value": 0o4000, "valueTwo": 0o4000, "op": "SCMP_CMP_MASKED_EQ" }] },
            { "names": ["getpid"], "action": "SCMP_ACT_KILL_PROCESS" },
            { "names": ["read"], "action": "SCMP_ACT_ALLOW" },
        ],
    }));
    let of = |call, third| run(&filter, call, [0, 0, third, 0, 0, 0]);
    let allowed = SECCOMP_RET_ALLOW;
    assert_eq!((of(SYS_read, 0), of(SYS_write, 0)), (allowed, allowed));
    assert_eq!(of(SYS_mkdirat, 0), EPERM_RETURNED);
    assert_eq!((of(SYS_fchmodat, 0o755), of(SYS_fchmodat, 0o4755)), (allowed, 0x0005_000d));
    assert_eq!(of(SYS_getpid, 0), SECCOMP_RET_KILL_PROCESS);
}

#[test]
fn each_condition_of_a_call_is_enough() {
    let filter = compiled_profile(json!({
        "defaultAction": "SCMP_ACT_KILL_PROCESS",
        "syscalls": [
            { "names": ["write"], "action": "SCMP_ACT_TRAP",
              "args": [{ "index": 0, "value": 1, "op": "SCMP_CMP_LE" }] },
            { "names": ["write"], "action": "SCMP_ACT_TRAP",
              "args": [{ "index": 0, "value": 3, "op": "SCMP_CMP_GE" }] },
            { "names": ["read"], "action": "SCMP_ACT_ALLOW",
              "args": [{ "index": 0, "value": 1, "op": "SCMP_CMP_EQ" }] },
            { "names": ["read"], "action": "SCMP_ACT_ERRNO", "errnoRet": 9 },
            { "names": ["getpid"], "action": "SCMP_ACT_KILL_PROCESS" },
        ],
    }));
    let of = |call, first| run(&filter, call, [first, 0, 0, 0, 0, 0]);
    assert_eq!([of(SYS_write, 1), of(SYS_write, 3), of(SYS_write, 1 << 40)], [SECCOMP_RET_TRAP; 3]);
    assert_eq!(of(SYS_write, 2), SECCOMP_RET_KILL_PROCESS);
    // A rule without conditions is the only one of its call.
    assert_eq!([of(SYS_read, 1), of(SYS_read, 2)], [0x0005_0009; 2]);
    assert_eq!([of(SYS_getpid, 0), of(SYS_close, 0)], [SECCOMP_RET_KILL_PROCESS; 2]);
}

#[test]
fn two_conditions_on_one_argument_are_alternatives() {
    let condition = |index: u32, value: u32| json!({ "index": index, "value": value, "op": "SCMP_CMP_EQ" });
    let of_rules = |arguments: Value| {
        compiled_profile(json!({
            "defaultAction": "SCMP_ACT_ERRNO",
            "syscalls": [{ "names": ["read"], "action": "SCMP_ACT_ALLOW", "args": arguments }],
        }))
    };
    let allowed = SECCOMP_RET_ALLOW;
    let either = of_rules(json!([condition(0, 1), condition(0, 2)]));
    let both = of_rules(json!([condition(0, 1), condition(1, 2)]));
    for (first, second, by_either, by_both) in
        [(1, 2, allowed, allowed), (1, 0, allowed, EPERM_RETURNED), (2, 2, allowed, EPERM_RETURNED)]
    {
        let arguments = [first, second, 0, 0, 0, 0];
        assert_eq!(run(&either, SYS_read, arguments), by_either, "{first} {second}");
        assert_eq!(run(&both, SYS_read, arguments), by_both, "{first} {second}");
    }
    assert_eq!(run(&either, SYS_read, [3, 0, 0, 0, 0, 0]), EPERM_RETURNED);
}

#[test]
fn profile_that_is_too_long_for_the_kernel_is_reported() {
    let values = |count: u32| {
        let condition = |value: u32| json!({ "index": 0, "value": value, "op": "SCMP_CMP_EQ" });
        let rules = (0..count).map(
            |value| json!({ "names": ["read"], "action": "SCMP_ACT_ERRNO", "args": [condition(value)] }),
        );
        let rules: Vec<Value> = rules.collect();
        let profile = json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules });
        serde_json::from_value::<oci::LinuxSeccomp>(profile).unwrap()
    };
    assert!(filters(&values(200)).is_ok());
    let why = filters(&values(4096)).unwrap_err();
    assert!(why.contains("too many BPF instructions"), "{why}");
}

#[test]
fn longest_filter_has_what_the_kernel_takes() {
    let of_conditions = |count: u32| {
        let rules = (0..count).map(|value| {
            let (name, action) = [("read", "SCMP_ACT_ERRNO"), ("write", "SCMP_ACT_TRAP")][value as usize % 2];
            let condition = json!({ "index": 0, "value": value, "op": "SCMP_CMP_EQ" });
            json!({ "names": [name], "action": action, "args": [condition] })
        });
        let rules: Vec<Value> = rules.collect();
        let profile = json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules });
        filters(&serde_json::from_value::<oci::LinuxSeccomp>(profile).unwrap())
    };
    // Neither part is too long for the compiler.
    let mut longest = 0;
    let refused = (570..600).find_map(|count| match of_conditions(count) {
        Ok(filters) => {
            longest = filters[0].len() / 8;
            None
        }
        Err(why) => Some(why),
    });
    // A condition has seven instructions.
    assert!((MAX_INSTRUCTIONS - 6..=MAX_INSTRUCTIONS).contains(&longest), "{longest}");
    let expected =
        format!("has {} instructions as a filter, and the kernel takes {MAX_INSTRUCTIONS}", longest + 7);
    assert_eq!(refused, Some(expected));
}

/// Managers refuse a profile whose filter may be too long.
#[test]
fn filter_is_as_long_as_its_profile_says() {
    let condition = |index: u32, op: &str| json!({ "index": index, "value": 1, "op": op });
    for default in ["SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"] {
        let json = json!({ "defaultAction": default, "syscalls": [
            { "names": ["read", "write"], "action": "SCMP_ACT_LOG" },
            { "names": ["openat", "mkdirat"], "action": "SCMP_ACT_KILL", "args": [
                condition(0, "SCMP_CMP_NE"), condition(1, "SCMP_CMP_GT"), condition(2, "SCMP_CMP_MASKED_EQ")
            ] },
            { "names": ["close"], "action": "SCMP_ACT_TRAP", "args": [
                condition(0, "SCMP_CMP_LE"), condition(0, "SCMP_CMP_GE")
            ] },
            { "names": ["close"], "action": "SCMP_ACT_TRAP", "args": [condition(1, "SCMP_CMP_EQ")] },
            { "names": ["fstat", "getpid", "getppid"], "action": default },
        ] });
        let most = SeccompProfile::parse(json.to_string().as_bytes()).unwrap().max_instructions();
        let length = compiled_profile(json).len() / 8;
        // Without what depends on the architecture and on the default.
        assert!((most - 13..=most).contains(&length), "{default}: {length} of {most}");
    }
}

#[test]
fn calls_newer_than_all_that_are_named_are_not_implemented() {
    let of = |default: &str, action: &str| {
        compiled_profile(json!({
            "defaultAction": default,
            "syscalls": [{ "names": ["mkdirat", "openat2", "no_such_call"], "action": action }],
        }))
    };
    let results =
        |filter: &[u8]| [SYS_close_range, SYS_openat2, SYS_faccessat2].map(|call| run(filter, call, [0; 6]));
    for (default, refused) in [
        ("SCMP_ACT_ERRNO", EPERM_RETURNED),
        ("SCMP_ACT_TRAP", SECCOMP_RET_TRAP),
        ("SCMP_ACT_KILL", SECCOMP_RET_KILL_THREAD),
        ("SCMP_ACT_KILL_PROCESS", SECCOMP_RET_KILL_PROCESS),
    ] {
        let filter = of(default, "SCMP_ACT_ALLOW");
        assert_eq!(results(&filter), [refused, SECCOMP_RET_ALLOW, ENOSYS_RETURNED], "{default}");
        // Programs of another architecture, whose calls have other numbers.
        assert_eq!(run_as(I386, &filter, SYS_faccessat2, [0; 6]), SECCOMP_RET_KILL_PROCESS, "{default}");
    }
    // What is not refused is left to the kernel, or to a tracer.
    for (default, passed) in [
        ("SCMP_ACT_ALLOW", SECCOMP_RET_ALLOW),
        ("SCMP_ACT_LOG", SECCOMP_RET_LOG),
        ("SCMP_ACT_TRACE", SECCOMP_RET_TRACE | EPERM),
    ] {
        let filter = of(default, "SCMP_ACT_KILL");
        assert_eq!(results(&filter), [passed, SECCOMP_RET_KILL_THREAD, passed], "{default}");
    }
    // A call counts that is named for what happens anyway, and filters that only differ in that are two.
    let unnamed = compiled_profile(json!({ "defaultAction": "SCMP_ACT_ERRNO" }));
    assert_eq!(results(&unnamed), [EPERM_RETURNED; 3]);
    let named = of("SCMP_ACT_ERRNO", "SCMP_ACT_ERRNO");
    assert_eq!(results(&named), [EPERM_RETURNED, EPERM_RETURNED, ENOSYS_RETURNED]);
    // So does one that only libseccomp may know, and runc takes the number 0 for no call.
    let named = |name: &str| {
        compiled_profile(json!({
            "defaultAction": "SCMP_ACT_ERRNO",
            "syscalls": [{ "names": [name], "action": "SCMP_ACT_ALLOW" }],
        }))
    };
    let newer = named("file_getattr");
    assert_eq!(
        [463, 468, 469].map(|call| run(&newer, call, [0; 6])),
        [EPERM_RETURNED, EPERM_RETURNED, ENOSYS_RETURNED]
    );
    let first = if cfg!(target_arch = "x86_64") { "read" } else { "io_setup" };
    assert_eq!(number_of(first), Some(0));
    assert_eq!(results(&named(first)), [EPERM_RETURNED; 3]);
}

#[test]
fn profile_without_rules_is_its_default() {
    let allowed = SECCOMP_RET_ALLOW;
    for (action, expected) in [("SCMP_ACT_ALLOW", allowed), ("SCMP_ACT_ERRNO", EPERM_RETURNED)] {
        let filter = compiled_profile(json!({ "defaultAction": action }));
        assert_eq!(run(&filter, SYS_read, [0; 6]), expected);
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn calls_of_x32_are_killed() {
    let filter = compiled_profile(json!({ "defaultAction": "SCMP_ACT_ALLOW" }));
    assert_eq!(run(&filter, 0x4000_0000, [0; 6]), SECCOMP_RET_KILL_PROCESS);
    assert_eq!(run(&filter, -1, [0; 6]), SECCOMP_RET_ALLOW);
    let filter = compiled_profile(json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "syscalls": [{ "names": ["write"], "action": "SCMP_ACT_ALLOW" }],
    }));
    assert_eq!(run(&filter, 0x4000_0001, [0; 6]), SECCOMP_RET_KILL_PROCESS);
    assert_eq!([-1, 2].map(|call| run(&filter, call, [0; 6])), [EPERM_RETURNED, ENOSYS_RETURNED]);
}

#[test]
fn newer_call_that_cannot_be_refused_beside_the_container_is_reported() {
    let of = |default: &str, action: &str| {
        let rule = json!({ "names": ["mkdirat", "setxattrat"], "action": action });
        let profile = json!({ "defaultAction": default, "syscalls": [rule] });
        filters(&serde_json::from_value::<oci::LinuxSeccomp>(profile).unwrap())
    };
    assert!(number_of("setxattrat").is_none(), "it need not be among the newer calls");
    let why = of("SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO").unwrap_err();
    assert!(why.starts_with("refuses setxattrat, "), "{why}");
    assert!(of("SCMP_ACT_ERRNO", "SCMP_ACT_KILL_PROCESS").is_err());
    assert!(of("SCMP_ACT_ERRNO", "SCMP_ACT_ALLOW").is_ok());
}

#[test]
fn unsupported_setting_is_reported() {
    let mut profile = oci::LinuxSeccomp::default();
    profile.set_default_action(Action::ScmpActNotify);
    assert!(filters(&profile).unwrap_err().contains("unsupported action"));
    profile.set_default_action(Action::ScmpActErrno).set_default_errno_ret(Some(5000));
    assert!(filters(&profile).unwrap_err().contains("is not an error number"));
    assert_eq!((number_of("read"), number_of("no_such_call")), (u32::try_from(SYS_read).ok(), None));
}
