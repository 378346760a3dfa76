//! The plan of `warren-exec` for further programs in a container: with the setup of its first process.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, OnceLock, PoisonError};

use oci_spec::runtime as oci;
use oci_spec::runtime::{
    LinuxSeccompAction as Action, LinuxSeccompOperator as Operator, PosixRlimitType as Kind,
};
use seccompiler::{BpfProgram, compile_from_json};
use serde_json::{Value, json};
use warren_container_programs::plan::{CapabilityMasks, ExecPlan};

use crate::spec::bits;

/// Compiled filters in the cache. Containers with equal privileges share one.
const MAX_FILTERS: usize = 64;

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

/// The filters of the profile: one for allowed calls, and one for each error that is not the default one. If
/// two filters return an error, the one that was installed last wins.
fn filters(profile: &oci::LinuxSeccomp) -> Result<Vec<Vec<u8>>, String> {
    static COMPILED: Mutex<BTreeMap<String, Vec<Vec<u8>>>> = Mutex::new(BTreeMap::new());
    let sources = sources(profile)?;
    let key = sources.iter().map(Value::to_string).collect::<String>();
    let kept = COMPILED.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
    if let Some(kept) = kept {
        return Ok(kept);
    }
    let compiled = sources.iter().map(compile).collect::<Result<Vec<_>, _>>()?;
    let mut all = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if all.len() >= MAX_FILTERS {
        all.clear();
    }
    all.insert(key, compiled.clone());
    Ok(compiled)
}

/// The filters in the input format of `seccompiler`.
fn sources(profile: &oci::LinuxSeccomp) -> Result<Vec<Value>, String> {
    if profile.default_action() != Action::ScmpActErrno {
        return Err(format!(
            "unsupported default action of the seccomp profile: {:?}",
            profile.default_action()
        ));
    }
    let default = profile.default_errno_ret().unwrap_or(1);
    let mut allowed = Vec::new();
    let mut others = Vec::new();
    for syscall in profile.syscalls().iter().flatten() {
        let names = syscall.names().iter().filter(|name| is_known(name));
        match syscall.action() {
            Action::ScmpActAllow => {
                let arguments =
                    syscall.args().iter().flatten().map(argument).collect::<Result<Vec<_>, _>>()?;
                allowed.extend(names.map(|name| match arguments.is_empty() {
                    true => json!({ "syscall": name }),
                    false => json!({ "syscall": name, "args": arguments }),
                }));
            }
            Action::ScmpActErrno if syscall.args().iter().flatten().next().is_none() => {
                let refused: Vec<Value> = names.map(|name| json!({ "syscall": name })).collect();
                let action = json!({ "errno": syscall.errno_ret().unwrap_or(1) });
                if !refused.is_empty() {
                    others.push(filter(json!("allow"), action, refused));
                }
            }
            action => return Err(format!("unsupported action in the seccomp profile: {action:?}")),
        }
    }
    // Passes calls for which another filter returns its own error; this one would return the default error.
    let mut all = vec![filter(json!({ "errno": default }), json!("allow"), allowed)];
    all.extend(others);
    Ok(all)
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

fn compile(source: &Value) -> Result<Vec<u8>, String> {
    let program = compiled(source).ok_or("cannot compile the seccomp profile")?;
    // In the memory layout of `struct sock_filter` (linux/filter.h).
    let instruction = |one: &seccompiler::sock_filter| {
        let mut bytes = one.code.to_ne_bytes().to_vec();
        bytes.extend([one.jt, one.jf]);
        bytes.extend(one.k.to_ne_bytes());
        bytes
    };
    Ok(program.iter().flat_map(instruction).collect())
}

fn compiled(source: &Value) -> Option<BpfProgram> {
    let arch = std::env::consts::ARCH.try_into().ok()?;
    compile_from_json(source.to_string().as_bytes(), arch).ok()?.remove("filter")
}

/// Whether the compiler knows the call's number. It cannot allow an unknown one: the container's own filter
/// may allow more than that of a program next to it, never less.
fn is_known(name: &str) -> bool {
    static KNOWN: OnceLock<Mutex<(BTreeSet<String>, BTreeSet<String>)>> = OnceLock::new();
    let known = KNOWN.get_or_init(Mutex::default);
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    if known.0.contains(name) || known.1.contains(name) {
        return known.0.contains(name);
    }
    let alone = filter(json!("allow"), json!("trap"), vec![json!({ "syscall": name })]);
    let is_known = compiled(&alone).is_some();
    let (there, missing) = &mut *known;
    if is_known { there } else { missing }.insert(name.to_owned());
    is_known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::default_profile;

    #[test]
    fn default_profile_compiles() {
        let sources = sources(&default_profile()).unwrap();
        assert_eq!(sources.len(), 2, "what is allowed, and clone3, which is not implemented");
        assert_eq!(sources[1]["filter"]["match_action"]["errno"], 38);
        let compiled = filters(&default_profile()).unwrap();
        assert_eq!(compiled.len(), 2);
        assert!(compiled.iter().all(|program| program.len().is_multiple_of(8) && program.len() > 32));
        assert!(compiled[0].len() / 8 < 4096, "the kernel takes no longer one");
        assert_eq!(filters(&default_profile()).unwrap(), compiled);
    }

    #[test]
    fn unsupported_setting_is_reported() {
        let mut profile = oci::LinuxSeccomp::default();
        profile.set_default_action(Action::ScmpActKill);
        assert!(filters(&profile).unwrap_err().contains("default action"));
        let mut rule = oci::LinuxSyscall::default();
        rule.set_names(vec!["read".to_owned()]).set_action(Action::ScmpActTrace);
        profile.set_default_action(Action::ScmpActErrno).set_syscalls(Some(vec![rule]));
        assert!(filters(&profile).unwrap_err().contains("unsupported action"));
        assert!(is_known("read") && !is_known("no_such_call"));
    }
}
