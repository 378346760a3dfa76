//! A profile of a user: what of it applies to one container on this machine, as Docker decides it.

use oci_spec::runtime as oci;
use serde_json::{Value, json};
use warren_types::{
    Capability, SeccompArchitecture, SeccompArchitectures, SeccompArgument, SeccompCondition, SeccompProfile,
    SeccompRule,
};

use crate::container::CapabilityEntry;
use crate::spec::capabilities::CapabilitySet;

/// This machine in lists of architectures, and as conditions name it.
const MACHINE: Option<(SeccompArchitecture, &str)> = if cfg!(target_arch = "x86_64") {
    Some((SeccompArchitecture::X86_64, "amd64"))
} else if cfg!(target_arch = "aarch64") {
    Some((SeccompArchitecture::Aarch64, "arm64"))
} else if cfg!(target_arch = "riscv64") {
    Some((SeccompArchitecture::Riscv64, "riscv64"))
} else {
    None
};

/// The profile of a container with these capabilities.
pub(in crate::spec) fn resolve(
    profile: &SeccompProfile,
    granted: CapabilitySet,
    kernel: (u32, u32),
) -> oci::LinuxSeccomp {
    let SeccompProfile { default_action, default_errno, architectures, rules } = profile;
    let architectures: Vec<&str> = architectures_here(architectures).iter().map(|it| it.as_str()).collect();
    let rules: Vec<Value> = rules.iter().filter(|rule| applies(rule, granted, kernel)).map(to_oci).collect();
    let document = json!({
        "defaultAction": default_action.as_str(),
        "defaultErrnoRet": default_errno,
        "architectures": (!architectures.is_empty()).then_some(architectures),
        "syscalls": (!rules.is_empty()).then_some(rules),
    });
    serde_json::from_value(document).expect("all words of profiles are those of the specification")
}

/// With that of the machine: libseccomp adds it to each list, but runc before 1.1.15 answers new calls with ENOSYS only
/// for architectures that are listed.
fn architectures_here(architectures: &SeccompArchitectures) -> Vec<SeccompArchitecture> {
    let here = MACHINE.map(|(here, _)| here);
    let mut list = match architectures {
        SeccompArchitectures::Listed(list) => list.clone(),
        SeccompArchitectures::Mapped(entries) => {
            let of_machine = entries.iter().find(|(own, _)| Some(*own) == here);
            of_machine.map(|(_, others)| others.clone()).unwrap_or_default()
        }
    };
    if let Some(here) = here.filter(|here| !list.contains(here)) {
        list.insert(0, here);
    }
    list
}

fn applies(rule: &SeccompRule, granted: CapabilitySet, kernel: (u32, u32)) -> bool {
    let is_machine =
        |names: &[String]| MACHINE.is_some_and(|(_, here)| names.iter().any(|name| name == here));
    let SeccompCondition { architectures, capabilities, min_kernel } = &rule.includes;
    let is_included = (architectures.is_empty() || is_machine(architectures))
        && capabilities.iter().all(|capability| has(granted, *capability))
        && min_kernel.is_none_or(|least| kernel >= least);
    let SeccompCondition { architectures, capabilities, min_kernel } = &rule.excludes;
    let is_excluded = is_machine(architectures)
        || capabilities.iter().any(|capability| has(granted, *capability))
        || min_kernel.is_some_and(|least| kernel >= least);
    is_included && !is_excluded
}

fn has(granted: CapabilitySet, capability: Capability) -> bool {
    match CapabilityEntry::parse(capability.as_str()) {
        Some(CapabilityEntry::One(capability)) => granted.has(capability),
        Some(CapabilityEntry::All) | None => false,
    }
}

fn to_oci(rule: &SeccompRule) -> Value {
    let SeccompRule { names, action, errno, arguments, includes: _, excludes: _ } = rule;
    let argument = |argument: &SeccompArgument| {
        let SeccompArgument { index, value, value_two, operator } = argument;
        json!({ "index": index, "value": value, "valueTwo": value_two, "op": operator.as_str() })
    };
    let arguments: Vec<Value> = arguments.iter().map(argument).collect();
    json!({
        "names": names,
        "action": action.as_str(),
        "errnoRet": errno,
        "args": (!arguments.is_empty()).then_some(arguments),
    })
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::{LinuxSeccompAction as Action, LinuxSeccompOperator as Operator};
    use warren_types::{SeccompAction, SeccompOperator};

    use super::*;

    const SYS_ADMIN: u64 = 1 << 21;

    fn resolved(json: &str, granted: u64, kernel: (u32, u32)) -> oci::LinuxSeccomp {
        let profile = SeccompProfile::parse(json.as_bytes()).unwrap();
        resolve(&profile, CapabilitySet::from_mask(granted), kernel)
    }

    fn native() -> Option<Vec<oci::Arch>> {
        MACHINE.map(|(here, _)| vec![serde_json::from_value(json!(here.as_str())).unwrap()])
    }

    /// The names of the rules that apply.
    fn rules(profile: &oci::LinuxSeccomp) -> Vec<String> {
        profile.syscalls().iter().flatten().flat_map(|rule| rule.names().clone()).collect()
    }

    #[test]
    fn conditions_select_rules() {
        let here = MACHINE.map_or("amd64", |(_, name)| name);
        let json = r#"{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
            {"names": ["always"], "action": "SCMP_ACT_ALLOW"},
            {"names": ["admin"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
            {"names": ["both"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN", "CAP_BPF"]}},
            {"names": ["others"], "action": "SCMP_ACT_ALLOW", "excludes": {"caps": ["CAP_SYS_ADMIN", "CAP_BPF"]}},
            {"names": ["here"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["s390x", "HERE"]}},
            {"names": ["there"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["s390x"]}},
            {"names": ["not_here"], "action": "SCMP_ACT_ALLOW", "excludes": {"arches": ["HERE"]}},
            {"names": ["new"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "5.10"}},
            {"names": ["old"], "action": "SCMP_ACT_ALLOW", "excludes": {"minKernel": "5.10"}}
        ]}"#
        .replace("HERE", here);
        assert_eq!(rules(&resolved(&json, 0, (5, 9))), ["always", "others", "here", "old"]);
        assert_eq!(rules(&resolved(&json, SYS_ADMIN, (5, 10))), ["always", "admin", "here", "new"]);
        let both = SYS_ADMIN | 1 << 39;
        assert_eq!(rules(&resolved(&json, both, (6, 0))), ["always", "admin", "both", "here", "new"]);
    }

    #[test]
    fn actions_errors_and_arguments_are_kept() {
        let json = r#"{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "syscalls": [
            {"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": 5,
             "args": [{"index": 1, "value": 7, "valueTwo": 9, "op": "SCMP_CMP_MASKED_EQ"}]}
        ]}"#;
        let profile = resolved(json, 0, (6, 1));
        assert_eq!((profile.default_action(), profile.default_errno_ret()), (Action::ScmpActErrno, Some(38)));
        assert_eq!(*profile.architectures(), native());
        let [rule] = profile.syscalls().as_deref().unwrap() else { panic!("{profile:?}") };
        assert_eq!((rule.action(), rule.errno_ret()), (Action::ScmpActErrno, Some(5)));
        let [argument] = rule.args().as_deref().unwrap() else { panic!("{rule:?}") };
        assert_eq!((argument.index(), argument.value(), argument.value_two()), (1, 7, Some(9)));
        assert_eq!(argument.op(), Operator::ScmpCmpMaskedEq);
    }

    #[test]
    fn every_word_is_one_of_the_specification() {
        let actions = SeccompAction::ALL
            .iter()
            .map(|action| format!(r#"{{"names": ["a"], "action": "{}"}}"#, action.as_str()));
        let operators = SeccompOperator::ALL.iter().map(|operator| {
            let op = operator.as_str();
            format!(
                r#"{{"names": ["a"], "action": "SCMP_ACT_LOG", "args": [{{"index": 0, "value": 0, "op": "{op}"}}]}}"#
            )
        });
        let rules: Vec<String> = actions.chain(operators).collect();
        let all: Vec<String> =
            SeccompArchitecture::ALL.iter().map(|one| format!("{:?}", one.as_str())).collect();
        let json = format!(
            r#"{{"defaultAction": "SCMP_ACT_ALLOW", "architectures": [{}], "syscalls": [{}]}}"#,
            all.join(", "),
            rules.join(", ")
        );
        let profile = resolved(&json, 0, (6, 1));
        assert_eq!(profile.architectures().as_ref().map_or(0, Vec::len), SeccompArchitecture::ALL.len());
        assert_eq!(profile.syscalls().as_ref().map_or(0, Vec::len), rules.len());
    }

    #[test]
    fn architectures_are_those_of_the_machine() {
        let json = r#"{"defaultAction": "SCMP_ACT_ALLOW", "archMap": [
            {"architecture": "SCMP_ARCH_S390X", "subArchitectures": ["SCMP_ARCH_S390"]},
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]}
        ]}"#;
        let expected = match MACHINE {
            Some((SeccompArchitecture::X86_64, _)) => {
                Some(vec![oci::Arch::ScmpArchX86_64, oci::Arch::ScmpArchX86, oci::Arch::ScmpArchX32])
            }
            Some((SeccompArchitecture::Aarch64, _)) => {
                Some(vec![oci::Arch::ScmpArchAarch64, oci::Arch::ScmpArchArm])
            }
            _ => native(),
        };
        assert_eq!(*resolved(json, 0, (6, 1)).architectures(), expected);
        let here = MACHINE.map_or("SCMP_ARCH_X86_64", |(here, _)| here.as_str());
        for (listed, count) in [("", 1), ("\"SCMP_ARCH_S390X\"", 2), ("\"SCMP_ARCH_S390X\", \"HERE\"", 2)] {
            let listed = listed.replace("HERE", here);
            let json = format!(r#"{{"defaultAction": "SCMP_ACT_ALLOW", "architectures": [{listed}]}}"#);
            let found = resolved(&json, 0, (6, 1)).architectures().clone().unwrap();
            assert!(found.len() == count && found.contains(&native().unwrap()[0]), "{listed}: {found:?}");
        }
    }
}
