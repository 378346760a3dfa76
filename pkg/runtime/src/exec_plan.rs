//! The plan of `warren-exec` for further programs in a container: with the setup of its first process.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use nix::libc::{
    SECCOMP_RET_ALLOW, SECCOMP_RET_DATA, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS,
    SECCOMP_RET_KILL_THREAD, SECCOMP_RET_LOG, SECCOMP_RET_TRACE, SECCOMP_RET_TRAP,
};
use oci_spec::runtime as oci;
use oci_spec::runtime::{
    LinuxSeccompAction as Action, LinuxSeccompOperator as Operator, PosixRlimitType as Kind,
};
use seccompiler::{BpfProgram, TargetArch, compile_from_json, sock_filter};
use serde_json::{Value, json};
use warren_container_programs::plan::{CapabilityMasks, ExecPlan};

use crate::spec::bits;

/// Compiled filters in the cache. Containers with equal privileges share one.
const MAX_FILTERS: usize = 64;
/// The most instructions of a filter (`BPF_MAXINSNS`).
const MAX_INSTRUCTIONS: usize = 4096;
/// Calls after Linux 6.12 with their numbers on all architectures, which libseccomp may know and the compiler does not.
/// Other unknown names are of other architectures, and no program makes those calls here.
const NEWER_CALLS: [(&str, u32); 8] = [
    ("setxattrat", 463),
    ("getxattrat", 464),
    ("listxattrat", 465),
    ("removexattrat", 466),
    ("open_tree_attr", 467),
    ("file_getattr", 468),
    ("file_setattr", 469),
    ("listns", 470),
];
/// The largest error number of the kernel.
const MAX_ERRNO: u32 = 4095;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
/// As a [`FilterAction`] has it.
const ALLOW: i32 = SECCOMP_RET_ALLOW.cast_signed();
/// Stands for the next part of a filter: with a number that no profile has.
const PASS: u32 = SECCOMP_RET_TRACE | SECCOMP_RET_DATA;
/// On x86_64 the first number of calls of x32, which are those of others with one more bit.
const X32_CALLS: u32 = 0x4000_0000;
/// Instructions at the start of each program of the compiler. The number of the call is loaded after them.
const ARCHITECTURE_CHECK: usize = 3;
/// Codes of instructions (linux/bpf_common.h): of a word of the call, of jumps, and of a constant that is returned.
const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_ABOVE: u16 = 0x25;
const JUMP_IF_NOT_BELOW: u16 = 0x35;
const RETURN: u16 = 0x06;

/// The plan without process, program and input, from the OCI document of the container.
///
/// # Errors
/// What a second process cannot apply, as text.
pub(crate) fn exec_plan(document: &oci::Spec) -> Result<ExecPlan, String> {
    let process = document.process().as_ref().ok_or("the document has no process")?;
    let linux = document.linux().as_ref().ok_or("the document is not for Linux")?;
    let sets = process.capabilities().as_ref().ok_or("the document has no capabilities")?;
    let set = |set: &Option<oci::Capabilities>| set.as_ref().map_or(0, bits);
    let limits = process.rlimits().iter().flatten();
    let cgroup = linux.cgroups_path().as_ref().ok_or("the document has no cgroup")?;
    let user = process.user();
    Ok(ExecPlan {
        environment: process.env().iter().flatten().map(|pair| pair.clone().into_bytes()).collect(),
        directory: process.cwd().as_os_str().as_bytes().to_vec(),
        uid: user.uid(),
        gid: user.gid(),
        groups: user.additional_gids().clone().unwrap_or_default(),
        capabilities: CapabilityMasks {
            bounding: set(sets.bounding()),
            effective: set(sets.effective()),
            permitted: set(sets.permitted()),
            inheritable: set(sets.inheritable()),
            ambient: set(sets.ambient()),
        },
        no_new_privileges: process.no_new_privileges().unwrap_or(false),
        apparmor_profile: process.apparmor_profile().clone().unwrap_or_default().into_bytes(),
        rlimits: limits.map(|limit| (resource(limit.typ()), limit.soft(), limit.hard())).collect(),
        seccomp_filters: linux.seccomp().as_ref().map(filters).transpose()?.unwrap_or_default(),
        cgroup: cgroup.display().to_string(),
        first_id: linux.uid_mappings().iter().flatten().next().map(oci::LinuxIdMapping::host_id),
        ..ExecPlan::default()
    })
}

/// The kernel's number (`asm-generic/resource.h`).
fn resource(kind: Kind) -> u32 {
    match kind {
        Kind::RlimitCpu => 0,
        Kind::RlimitFsize => 1,
        Kind::RlimitData => 2,
        Kind::RlimitStack => 3,
        Kind::RlimitCore => 4,
        Kind::RlimitRss => 5,
        Kind::RlimitNproc => 6,
        Kind::RlimitNofile => 7,
        Kind::RlimitMemlock => 8,
        Kind::RlimitAs => 9,
        Kind::RlimitLocks => 10,
        Kind::RlimitSigpending => 11,
        Kind::RlimitMsgqueue => 12,
        Kind::RlimitNice => 13,
        Kind::RlimitRtprio => 14,
        Kind::RlimitRttime => 15,
    }
}

/// The filter of the profile, as one program: a profile need not allow that another one is installed.
fn filters(profile: &oci::LinuxSeccomp) -> Result<Vec<Vec<u8>>, String> {
    static COMPILED: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let numbers = call_numbers(profile);
    let sources = sources(profile, &numbers)?;
    let newest = match profile.default_action() {
        // Maybe by a tracer, which should support calls that are newer than the profile.
        Action::ScmpActAllow | Action::ScmpActLog | Action::ScmpActTrace => None,
        _ => newest_call(profile, &numbers),
    };
    let key = sources.iter().map(Value::to_string).chain(newest.map(|newest| newest.to_string()));
    let key = key.collect::<String>();
    let kept = COMPILED.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
    if let Some(kept) = kept {
        return Ok(vec![kept]);
    }
    let linked = link(&sources, newest)?;
    let mut all = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if all.len() >= MAX_FILTERS {
        all.clear();
    }
    all.insert(key, linked.clone());
    Ok(vec![linked])
}

/// What a filter returns for an action, signed as the kernel compares it: the least is the strictest. And the action in
/// the input format of `seccompiler`.
type FilterAction = (i32, Value);

fn action(kind: Action, errno: Option<u32>) -> Result<FilterAction, String> {
    let number = || match errno.unwrap_or(EPERM) {
        number @ 0..=MAX_ERRNO => Ok(number),
        _ => Err(format!("{errno:?} is not an error number that a seccomp profile may return")),
    };
    let (returned, action) = match kind {
        Action::ScmpActKillProcess => (SECCOMP_RET_KILL_PROCESS, json!("kill_process")),
        Action::ScmpActKill | Action::ScmpActKillThread => (SECCOMP_RET_KILL_THREAD, json!("kill_thread")),
        Action::ScmpActTrap => (SECCOMP_RET_TRAP, json!("trap")),
        Action::ScmpActErrno => (SECCOMP_RET_ERRNO | number()?, json!({ "errno": number()? })),
        Action::ScmpActTrace => (SECCOMP_RET_TRACE | number()?, json!({ "trace": number()? })),
        Action::ScmpActLog => (SECCOMP_RET_LOG, json!("log")),
        Action::ScmpActAllow => (SECCOMP_RET_ALLOW, json!("allow")),
        Action::ScmpActNotify => return Err(format!("unsupported action in the seccomp profile: {kind:?}")),
    };
    Ok((returned.cast_signed(), action))
}

/// The numbers of the calls that the profile names, of those that the compiler knows.
fn call_numbers(profile: &oci::LinuxSeccomp) -> BTreeMap<&str, u32> {
    let names = profile.syscalls().iter().flatten().flat_map(|rule| rule.names());
    names.filter_map(|name| Some((name.as_str(), number_of(name)?))).collect()
}

/// The largest number of the calls that the profile names, if that is not 0: runc takes 0 for none.
fn newest_call(profile: &oci::LinuxSeccomp, numbers: &BTreeMap<&str, u32>) -> Option<u32> {
    let names = profile.syscalls().iter().flatten().flat_map(|rule| rule.names());
    let newer = names.filter_map(|name| {
        NEWER_CALLS.iter().find(|(newer, _)| *newer == name.as_str()).map(|(_, number)| *number)
    });
    numbers.values().copied().chain(newer).max().filter(|newest| *newest > 0)
}

/// One program for calls without a rule, which passes those that have one, and one for each action that is not to
/// allow the call. Of rules with conditions, those of one call have one action, so that their order does not matter.
/// All in the input format of `seccompiler`; [`PASS`] goes on with the next one.
fn sources(profile: &oci::LinuxSeccomp, numbers: &BTreeMap<&str, u32>) -> Result<Vec<Value>, String> {
    let default = action(profile.default_action(), profile.default_errno_ret())?;
    let mut by_action: BTreeMap<i32, (Value, Vec<Value>)> = BTreeMap::new();
    let mut with_rules = Vec::new();
    for (name, rules) in rules_by_call(profile, numbers, &default)? {
        for ((order, action), conditions) in rules {
            let rule = match conditions.is_empty() {
                true => json!({ "syscall": name }),
                false => json!({ "syscall": name, "args": conditions }),
            };
            with_rules.push(rule.clone());
            by_action.entry(order).or_insert_with(|| (action, Vec::new())).1.push(rule);
        }
    }
    by_action.remove(&ALLOW);
    let pass = || json!({ "trace": PASS & 0xffff });
    let mut all = Vec::new();
    if default.0 != ALLOW || by_action.is_empty() {
        all.push(filter(default.1, pass(), with_rules));
    }
    all.extend(by_action.into_values().map(|(action, rules)| filter(pass(), action, rules)));
    Ok(all)
}

/// A rule: what it does, and the conditions that all have to hold.
type CallRule = (FilterAction, Vec<Value>);

/// The rules of each call, as runc and libseccomp reduce them: none that does what happens anyway, and none beside one
/// without conditions.
fn rules_by_call<'a>(
    profile: &'a oci::LinuxSeccomp,
    numbers: &BTreeMap<&str, u32>,
    default: &FilterAction,
) -> Result<BTreeMap<&'a str, Vec<CallRule>>, String> {
    let mut calls: BTreeMap<&str, Vec<CallRule>> = BTreeMap::new();
    for syscall in profile.syscalls().iter().flatten() {
        let action = action(syscall.action(), syscall.errno_ret())?;
        if action == *default {
            continue;
        }
        // Without the data, which is an error number.
        let is_stricter = action.0 >> 16 < default.0 >> 16;
        let is_known = |name: &&String| numbers.contains_key(name.as_str());
        let is_newer =
            |name: &&String| NEWER_CALLS.iter().any(|(newer, _)| *newer == name.as_str()) && !is_known(name);
        if is_stricter && let Some(name) = syscall.names().iter().find(is_newer) {
            return Err(format!(
                "refuses {name}, which health checks and `exec` could still call; leave it out, or list what is \
                 allowed with a default action that refuses the rest"
            ));
        }
        let alternatives = alternatives(syscall.args().as_deref().unwrap_or_default())?;
        for name in syscall.names().iter().filter(is_known) {
            let known = calls.entry(name.as_str()).or_default();
            if known.iter().any(|(_, conditions)| conditions.is_empty()) {
                continue;
            }
            if alternatives.is_empty() {
                *known = vec![(action.clone(), Vec::new())];
            }
            known.extend(alternatives.iter().map(|conditions| (action.clone(), conditions.clone())));
        }
    }
    Ok(calls)
}

/// Lists of conditions of which one has to hold; none without conditions. If two are about the same argument, runc
/// makes a rule of each.
fn alternatives(arguments: &[oci::LinuxSeccompArg]) -> Result<Vec<Vec<Value>>, String> {
    let conditions = arguments.iter().map(argument).collect::<Result<Vec<Value>, String>>()?;
    let indexes: BTreeSet<usize> = arguments.iter().map(oci::LinuxSeccompArg::index).collect();
    Ok(match conditions.len() {
        0 => Vec::new(),
        count if indexes.len() < count => conditions.into_iter().map(|condition| vec![condition]).collect(),
        _ => vec![conditions],
    })
}

fn filter(otherwise: Value, then: Value, rules: Vec<Value>) -> Value {
    json!({ "filter": { "mismatch_action": otherwise, "match_action": then, "filter": rules } })
}

fn argument(argument: &oci::LinuxSeccompArg) -> Result<Value, String> {
    let (value, second) = (argument.value(), argument.value_two().unwrap_or(0));
    let (op, value) = match argument.op() {
        Operator::ScmpCmpEq => (json!("eq"), value),
        Operator::ScmpCmpNe => (json!("ne"), value),
        Operator::ScmpCmpGe => (json!("ge"), value),
        Operator::ScmpCmpGt => (json!("gt"), value),
        Operator::ScmpCmpLe => (json!("le"), value),
        Operator::ScmpCmpLt => (json!("lt"), value),
        Operator::ScmpCmpMaskedEq => (json!({ "masked_eq": value }), second),
    };
    let index = u8::try_from(argument.index()).map_err(|_| "a system call has six arguments".to_owned())?;
    Ok(json!({ "index": index, "type": "qword", "op": op, "val": value }))
}

/// The programs as one, each in the place of [`PASS`] in the one before; the last one allows there. Calls above
/// `newest` are not implemented.
fn link(sources: &[Value], newest: Option<u32>) -> Result<Vec<u8>, String> {
    let mut program = foreign_calls();
    for (number, source) in sources.iter().enumerate() {
        let mut part = compiled(source).map_err(|error| format!("cannot be a filter: {error}"))?;
        if number == 0 {
            let newer = newest.into_iter().flat_map(newer_calls);
            drop(part.splice(ARCHITECTURE_CHECK..ARCHITECTURE_CHECK, newer));
        }
        let (length, is_last) = (part.len(), number + 1 == sources.len());
        for (place, instruction) in part.iter_mut().enumerate() {
            if (instruction.code, instruction.k) == (RETURN, PASS) {
                let rest = u32::try_from(length - place - 1).unwrap_or(u32::MAX);
                (instruction.code, instruction.k) =
                    if is_last { (RETURN, ALLOW.cast_unsigned()) } else { (JUMP, rest) };
            }
        }
        program.extend(part);
    }
    if program.len() > MAX_INSTRUCTIONS {
        let length = program.len();
        return Err(format!(
            "has {length} instructions as a filter, and the kernel takes {MAX_INSTRUCTIONS}"
        ));
    }
    // In the memory layout of `struct sock_filter` (linux/filter.h).
    let encode = |one: &sock_filter| {
        let mut bytes = one.code.to_ne_bytes().to_vec();
        bytes.extend([one.jt, one.jf]);
        bytes.extend(one.k.to_ne_bytes());
        bytes
    };
    Ok(program.iter().flat_map(encode).collect())
}

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Answers calls above the newest one that a profile names as a kernel does that does not know them, so that the C
/// library does without them. runc does the same, on x86_64 for numbers without the bit of x32.
fn newer_calls(newest: u32) -> BpfProgram {
    let mut program = vec![instruction(LOAD, 0, 0, 0)];
    if cfg!(target_arch = "x86_64") {
        program.push(instruction(JUMP_IF_NOT_BELOW, 2, 0, X32_CALLS));
    }
    program.push(instruction(JUMP_IF_ABOVE, 0, 1, newest));
    program.push(instruction(RETURN, 0, 0, SECCOMP_RET_ERRNO | ENOSYS));
    program
}

/// Kills what makes calls of x32. No call has the number -1: a tracer sets it to skip one.
fn foreign_calls() -> BpfProgram {
    if !cfg!(target_arch = "x86_64") {
        return Vec::new();
    }
    vec![
        instruction(LOAD, 0, 0, 0),
        instruction(JUMP_IF_NOT_BELOW, 0, 2, X32_CALLS),
        instruction(JUMP_IF_EQUAL, 1, 0, u32::MAX),
        instruction(RETURN, 0, 0, SECCOMP_RET_KILL_PROCESS),
    ]
}

fn compiled(source: &Value) -> Result<BpfProgram, String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    let compiled = compile_from_json(source.to_string().as_bytes(), arch);
    let mut filters = compiled.map_err(|error| error.to_string())?;
    filters.remove("filter").ok_or_else(|| "the compiler made none".to_owned())
}

/// The call's number, if the compiler knows it. The rules of a call that is unknown have no effect, so a program beside
/// the first one may be refused what the first one may call.
fn number_of(name: &str) -> Option<u32> {
    // Not those that are unknown, of which users may give any number.
    static KNOWN: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = known().get(name).copied();
    if kept.is_some() {
        return kept;
    }
    let alone = filter(json!("allow"), json!("trap"), vec![json!({ "syscall": name })]);
    // What is loaded is compared with it.
    let number = compiled(&alone).ok()?.get(ARCHITECTURE_CHECK + 1)?.k;
    known().insert(name.to_owned(), number);
    Some(number)
}

#[cfg(test)]
mod tests;
