//! Seccomp profiles of users, in the JSON of Docker. What a node applies of one depends on the capabilities of the
//! container, its architecture and its kernel.
//!
//! Source: the profiles of `moby/profiles`, and `config-linux.md` of the OCI runtime specification 1.2.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use serde::Deserialize;
use serde_json::Value;

use crate::spec::Capability;
use crate::text::shorten;
use crate::{Violation, Violations};

/// The most bytes of a profile.
const MAX_SECCOMP_PROFILE: usize = 64 << 10;
/// The most instructions of a filter that the kernel takes (`BPF_MAXINSNS`).
const MAX_INSTRUCTIONS: usize = 4096;
/// Instructions of `warren-exec` at the start of a filter, for each part of it, and in a part for each call.
const START_INSTRUCTIONS: usize = 8;
const PART_INSTRUCTIONS: usize = 5;
const CALL_INSTRUCTIONS: usize = 2;
/// The most violations of a profile that are reported.
const MAX_VIOLATIONS: usize = 8;
/// The largest error number of the kernel (`MAX_ERRNO`).
const MAX_ERRNO: u32 = 4095;
const EPERM: u32 = 1;
/// The most arguments of a system call.
const MAX_ARGUMENTS: u64 = 6;
/// Architectures as conditions name them: those of Go, and those that Docker adds.
const CONDITION_ARCHITECTURES: [&str; 21] = [
    "386",
    "amd64",
    "arm",
    "arm64",
    "loong64",
    "mips",
    "mips64",
    "mips64le",
    "mips64n32",
    "mips64p32",
    "mips64p32le",
    "mipsel64n32",
    "mipsle",
    "ppc",
    "ppc64",
    "ppc64le",
    "riscv64",
    "s390",
    "s390x",
    "x32",
    "x86",
];

/// Enums whose values have fixed names in profiles.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident ($expected:literal) { $($variant:ident $text:literal)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $(#[doc = $text] $variant,)*
        }

        impl $name {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// As in profiles, and in the documents of the OCI runtime.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text),*
                }
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let known = Self::ALL.iter().find(|word| word.as_str() == text);
                known.copied().ok_or_else(|| {
                    let all: Vec<&str> = Self::ALL.iter().map(|word| word.as_str()).collect();
                    format!("{:?} is not {}; give one of {}", shorten(text), $expected, all.join(", "))
                })
            }
        }
    )*};
}

words! {
    /// What happens to a system call.
    SeccompAction ("an action") {
        Kill "SCMP_ACT_KILL"
        KillThread "SCMP_ACT_KILL_THREAD"
        KillProcess "SCMP_ACT_KILL_PROCESS"
        Trap "SCMP_ACT_TRAP"
        Errno "SCMP_ACT_ERRNO"
        Trace "SCMP_ACT_TRACE"
        Log "SCMP_ACT_LOG"
        Allow "SCMP_ACT_ALLOW"
    }
    /// How an argument is compared.
    SeccompOperator ("an operator") {
        NotEqual "SCMP_CMP_NE"
        Less "SCMP_CMP_LT"
        LessOrEqual "SCMP_CMP_LE"
        Equal "SCMP_CMP_EQ"
        GreaterOrEqual "SCMP_CMP_GE"
        Greater "SCMP_CMP_GT"
        MaskedEqual "SCMP_CMP_MASKED_EQ"
    }
    /// An architecture of programs.
    SeccompArchitecture ("an architecture") {
        X86 "SCMP_ARCH_X86"
        X86_64 "SCMP_ARCH_X86_64"
        X32 "SCMP_ARCH_X32"
        Arm "SCMP_ARCH_ARM"
        Aarch64 "SCMP_ARCH_AARCH64"
        Mips "SCMP_ARCH_MIPS"
        Mips64 "SCMP_ARCH_MIPS64"
        Mips64N32 "SCMP_ARCH_MIPS64N32"
        Mipsel "SCMP_ARCH_MIPSEL"
        Mipsel64 "SCMP_ARCH_MIPSEL64"
        Mipsel64N32 "SCMP_ARCH_MIPSEL64N32"
        Ppc "SCMP_ARCH_PPC"
        Ppc64 "SCMP_ARCH_PPC64"
        Ppc64Le "SCMP_ARCH_PPC64LE"
        S390 "SCMP_ARCH_S390"
        S390X "SCMP_ARCH_S390X"
        Parisc "SCMP_ARCH_PARISC"
        Parisc64 "SCMP_ARCH_PARISC64"
        Riscv64 "SCMP_ARCH_RISCV64"
        Loongarch64 "SCMP_ARCH_LOONGARCH64"
    }
}

/// A valid profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeccompProfile {
    /// For system calls that no rule matches.
    pub default_action: SeccompAction,
    /// The error of the default action; `None` is EPERM.
    pub default_errno: Option<u32>,
    /// Which programs may run.
    pub architectures: SeccompArchitectures,
    /// Rules. Those that do not apply to a container have no effect on it.
    pub rules: Vec<SeccompRule>,
}

/// Architectures of programs that may run, beside that of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeccompArchitectures {
    /// On every machine.
    Listed(Vec<SeccompArchitecture>),
    /// On a machine of the first one, those after it.
    Mapped(Vec<(SeccompArchitecture, Vec<SeccompArchitecture>)>),
}

/// What happens to some system calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeccompRule {
    /// Names of system calls, each once. A node ignores those that its libraries do not know.
    pub names: Vec<String>,
    /// What happens to them.
    pub action: SeccompAction,
    /// The error of the action; `None` is EPERM.
    pub errno: Option<u32>,
    /// What their arguments have to be: all of them. Of several for one argument, each is a rule of its own.
    pub arguments: Vec<SeccompArgument>,
    /// The rule applies only where all of it holds.
    pub includes: SeccompCondition,
    /// The rule does not apply where any of it holds.
    pub excludes: SeccompCondition,
}

impl SeccompRule {
    /// Instructions of a filter for what is demanded of the arguments of one call.
    fn instructions(&self) -> usize {
        let indexes: BTreeSet<u64> = self.arguments.iter().map(|argument| argument.index).collect();
        let alternatives = if indexes.len() < self.arguments.len() { self.arguments.len() } else { 1 };
        let comparison = |argument: &SeccompArgument| match argument.operator {
            SeccompOperator::Equal | SeccompOperator::NotEqual => 4,
            SeccompOperator::MaskedEqual => 6,
            SeccompOperator::Less
            | SeccompOperator::LessOrEqual
            | SeccompOperator::GreaterOrEqual
            | SeccompOperator::Greater => 5,
        };
        3 * alternatives + self.arguments.iter().map(comparison).sum::<usize>()
    }
}

/// A comparison of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeccompArgument {
    /// From 0 to 5.
    pub index: u64,
    /// What it is compared with; for a masked comparison the mask.
    pub value: u64,
    /// What the masked argument is compared with.
    pub value_two: u64,
    /// How it is compared.
    pub operator: SeccompOperator,
}

/// What a rule depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeccompCondition {
    /// Architectures as Docker names them: `amd64`. One of them is enough.
    pub architectures: Vec<String>,
    /// Capabilities of the container.
    pub capabilities: Vec<Capability>,
    /// The kernel has this version or a newer one.
    pub min_kernel: Option<(u32, u32)>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawProfile {
    default_action: Option<String>,
    default_errno_ret: Option<u32>,
    architectures: Option<Vec<String>>,
    arch_map: Option<Vec<RawArchitectures>>,
    syscalls: Option<Vec<RawRule>>,
    flags: Option<Vec<String>>,
    listener_path: Option<String>,
    listener_metadata: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawArchitectures {
    architecture: String,
    sub_architectures: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawRule {
    name: Option<String>,
    names: Option<Vec<String>>,
    action: String,
    errno_ret: Option<u32>,
    args: Option<Vec<RawArgument>>,
    includes: Option<RawCondition>,
    excludes: Option<RawCondition>,
    #[serde(rename = "comment")]
    _comment: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawArgument {
    index: u64,
    value: u64,
    value_two: Option<u64>,
    op: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawCondition {
    arches: Option<Vec<String>>,
    caps: Option<Vec<String>>,
    min_kernel: Option<String>,
}

impl SeccompProfile {
    /// A valid profile without spaces and with sorted fields, which may be within the limit while `json` is not.
    ///
    /// # Errors
    /// As of [`SeccompProfile::parse`].
    pub fn normalize(json: &[u8]) -> Result<String, Violations> {
        let value: Value = serde_json::from_slice(json).map_err(|error| no_profile(&error))?;
        let text = value.to_string();
        Self::parse(text.as_bytes()).map(|_| text)
    }

    /// Reads a profile, of at most 64 KiB, whose filter is not too long on any node.
    ///
    /// # Errors
    /// The first violations with their paths in the profile, or that it is no JSON of a profile.
    pub fn parse(json: &[u8]) -> Result<Self, Violations> {
        let profile = Self::parse_accepted(json)?;
        let count = profile.max_instructions();
        if count > MAX_INSTRUCTIONS {
            let message = format!(
                "are a filter of up to {count} instructions, and the kernel takes {MAX_INSTRUCTIONS}; use fewer calls \
                 or conditions"
            );
            return Err(Violation::new("syscalls", message).into());
        }
        Ok(profile)
    }

    /// Reads a profile that a manager accepted, whatever [`Self::max_instructions`] is now: a node compiles the filter.
    ///
    /// # Errors
    /// As of [`SeccompProfile::parse`].
    pub fn parse_accepted(json: &[u8]) -> Result<Self, Violations> {
        if json.len() > MAX_SECCOMP_PROFILE {
            let message = format!("has {} bytes, more than {MAX_SECCOMP_PROFILE}", json.len());
            return Err(Violation::new("", message).into());
        }
        let raw: RawProfile = serde_json::from_slice(json).map_err(|error| no_profile(&error))?;
        let mut wrong = Violations::default();
        let RawProfile {
            default_action,
            default_errno_ret,
            architectures,
            arch_map,
            syscalls,
            flags,
            listener_path,
            listener_metadata,
        } = raw;
        for (path, is_set) in [
            ("flags", flags.is_some_and(|flags| !flags.is_empty())),
            ("listenerPath", listener_path.is_some_and(|path| !path.is_empty())),
            ("listenerMetadata", listener_metadata.is_some_and(|text| !text.is_empty())),
        ] {
            if is_set {
                wrong.add(path, "is not supported; leave it out");
            }
        }
        let default_action = match default_action {
            Some(action) => {
                let paths = ["defaultAction", "defaultErrnoRet"];
                read_action(paths, &action, default_errno_ret, &mut wrong)
            }
            None => {
                wrong.add("defaultAction", "is missing; give an action like SCMP_ACT_ERRNO");
                None
            }
        };
        let architectures = read_architectures(architectures, arch_map, &mut wrong);
        let rules = syscalls.unwrap_or_default().into_iter().enumerate();
        let rules: Vec<Option<SeccompRule>> =
            rules.map(|(i, rule)| read_rule(&format!("syscalls[{i}]"), rule, &mut wrong)).collect();
        let read = || {
            let (default_action, rules) = (default_action?, rules.into_iter().collect::<Option<_>>()?);
            Some(Self { default_action, default_errno: default_errno_ret, architectures, rules })
        };
        let read = read();
        if let Some(profile) = &read {
            profile.check_order(&mut wrong);
        }
        wrong.0.truncate(MAX_VIOLATIONS);
        let read = wrong.into_result(read)?;
        Ok(read.expect("what could not be read is a violation"))
    }

    /// How long the filter of `warren-exec` is at most: on a node that knows all calls, and where all rules apply. It
    /// has a part for calls without a rule, in which those with one are listed unless the default allows all, and a
    /// part for each action but to allow. Rules that do the same as the default have no effect.
    pub fn max_instructions(&self) -> usize {
        let is_listed = |action: SeccompAction| action != SeccompAction::Allow;
        let (mut actions, mut calls) = (BTreeSet::new(), BTreeSet::new());
        let mut count = START_INSTRUCTIONS + PART_INSTRUCTIONS;
        let default = effect(self.default_action, self.default_errno);
        for rule in &self.rules {
            let action = effect(rule.action, rule.errno);
            if action == default {
                continue;
            }
            if is_listed(rule.action) && actions.insert(action) {
                count += PART_INSTRUCTIONS;
            }
            let lists = [self.default_action, rule.action].into_iter().filter(|action| is_listed(*action));
            let new = rule.names.iter().filter(|name| calls.insert((name.as_str(), action))).count();
            count += lists.count() * (new * CALL_INSTRUCTIONS + rule.names.len() * rule.instructions());
        }
        count
    }

    /// Refuses rules with conditions for one call that do different things: which one of several that match counts is
    /// the order of libseccomp, by argument, operator and value, not that of the profile. Rules that do the same as the
    /// default have no effect.
    fn check_order(&self, wrong: &mut Violations) {
        let default = effect(self.default_action, self.default_errno);
        let mut known = BTreeMap::new();
        for (i, rule) in self.rules.iter().enumerate().filter(|(_, rule)| !rule.arguments.is_empty()) {
            let own = effect(rule.action, rule.errno);
            if own == default {
                continue;
            }
            for name in &rule.names {
                let (earlier, other) = *known.entry(name.as_str()).or_insert((i, own));
                if other != own {
                    let message = format!(
                        "does something else with {name} than syscalls[{earlier}], and both have args: which one \
                         counts if both match is not defined; use one action for all conditions of a call"
                    );
                    wrong.add(format!("syscalls[{i}]"), message);
                    break;
                }
            }
        }
    }
}

/// An action and its error, equal for all that do the same.
fn effect(action: SeccompAction, errno: Option<u32>) -> (&'static str, u32) {
    match action {
        SeccompAction::Errno | SeccompAction::Trace => (action.as_str(), errno.unwrap_or(EPERM)),
        SeccompAction::Kill => (SeccompAction::KillThread.as_str(), 0),
        _ => (action.as_str(), 0),
    }
}

fn no_profile(error: &serde_json::Error) -> Violation {
    Violation::new("", format!("is not a seccomp profile in Docker's format: {error}"))
}

fn read_word<T: FromStr<Err = String>>(path: &str, text: &str, wrong: &mut Violations) -> Option<T> {
    text.parse().map_err(|message: String| wrong.add(path, message)).ok()
}

/// The paths are those of the action and of its error.
fn read_action(
    [path, errno_path]: [&str; 2],
    text: &str,
    errno: Option<u32>,
    wrong: &mut Violations,
) -> Option<SeccompAction> {
    if text == "SCMP_ACT_NOTIFY" {
        wrong.add(path, "is SCMP_ACT_NOTIFY, which needs a program that decides; it is not supported");
        return None;
    }
    let action = read_word(path, text, wrong)?;
    if let Some(errno) = errno {
        if !matches!(action, SeccompAction::Errno | SeccompAction::Trace) {
            wrong.add(errno_path, "is only for SCMP_ACT_ERRNO and SCMP_ACT_TRACE; leave it out");
        } else if errno > MAX_ERRNO {
            wrong.add(errno_path, format!("{errno} is not an error number; give 1 to {MAX_ERRNO}"));
        } else if errno == 0 && action == SeccompAction::Errno {
            let message = format!("is 0, with which calls succeed and do nothing; give 1 to {MAX_ERRNO}");
            wrong.add(errno_path, message);
        }
    }
    Some(action)
}

fn read_architectures(
    listed: Option<Vec<String>>,
    mapped: Option<Vec<RawArchitectures>>,
    wrong: &mut Violations,
) -> SeccompArchitectures {
    let (listed, mapped) = (listed.unwrap_or_default(), mapped.unwrap_or_default());
    if !listed.is_empty() && !mapped.is_empty() {
        wrong.add("archMap", "is set beside architectures; leave one of them out");
    }
    if mapped.is_empty() {
        return SeccompArchitectures::Listed(read_words("architectures", &listed, wrong));
    }
    let mut entries = Vec::new();
    for (i, RawArchitectures { architecture, sub_architectures }) in mapped.into_iter().enumerate() {
        let own = read_word(&format!("archMap[{i}].architecture"), &architecture, wrong);
        let others = sub_architectures.unwrap_or_default();
        let others = read_words(&format!("archMap[{i}].subArchitectures"), &others, wrong);
        entries.extend(own.map(|own| (own, others)));
    }
    SeccompArchitectures::Mapped(entries)
}

fn read_words(path: &str, names: &[String], wrong: &mut Violations) -> Vec<SeccompArchitecture> {
    let names = names.iter().enumerate();
    names.filter_map(|(i, name)| read_word(&format!("{path}[{i}]"), name, wrong)).collect()
}

fn read_rule(path: &str, rule: RawRule, wrong: &mut Violations) -> Option<SeccompRule> {
    let RawRule { name, names, action, errno_ret, args, includes, excludes, _comment: _ } = rule;
    let mut names = names.unwrap_or_default();
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        if !names.is_empty() {
            wrong.add(format!("{path}.name"), "is set beside names; leave one of them out");
        }
        names.push(name);
    }
    if names.is_empty() {
        wrong.add(format!("{path}.names"), "is empty; give names of system calls");
    }
    let is_plain = |name: &str| {
        (1..=64).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    for (i, name) in names.iter().enumerate().filter(|(_, name)| !is_plain(name)) {
        let message = format!("{:?} is not the name of a system call", shorten(name));
        wrong.add(format!("{path}.names[{i}]"), message);
    }
    let mut known = BTreeSet::new();
    names.retain(|name| known.insert(name.clone()));
    let paths = ["action", "errnoRet"].map(|field| format!("{path}.{field}"));
    let action = read_action([&paths[0], &paths[1]], &action, errno_ret, wrong);
    let arguments = args.unwrap_or_default().into_iter().enumerate();
    let arguments: Vec<Option<SeccompArgument>> = arguments
        .map(|(i, argument)| read_argument(&format!("{path}.args[{i}]"), &argument, wrong))
        .collect();
    let includes = read_condition(&format!("{path}.includes"), includes.unwrap_or_default(), wrong);
    let excludes = read_condition(&format!("{path}.excludes"), excludes.unwrap_or_default(), wrong);
    let arguments = arguments.into_iter().collect::<Option<_>>()?;
    Some(SeccompRule { names, action: action?, errno: errno_ret, arguments, includes, excludes })
}

fn read_argument(path: &str, argument: &RawArgument, wrong: &mut Violations) -> Option<SeccompArgument> {
    let RawArgument { index, value, value_two, op } = argument;
    if *index >= MAX_ARGUMENTS {
        let message = format!("{index} is not an argument; give 0 to {}", MAX_ARGUMENTS - 1);
        wrong.add(format!("{path}.index"), message);
        return None;
    }
    let operator = read_word(&format!("{path}.op"), op, wrong)?;
    Some(SeccompArgument { index: *index, value: *value, value_two: value_two.unwrap_or_default(), operator })
}

fn read_condition(path: &str, condition: RawCondition, wrong: &mut Violations) -> SeccompCondition {
    let RawCondition { arches, caps, min_kernel } = condition;
    let architectures = arches.unwrap_or_default();
    for (i, name) in architectures.iter().enumerate() {
        if !CONDITION_ARCHITECTURES.contains(&name.as_str()) {
            let shown = shorten(name);
            let message = format!("{shown:?} is not an architecture as Docker names it, like amd64 or arm64");
            wrong.add(format!("{path}.arches[{i}]"), message);
        }
    }
    let mut capabilities = Vec::new();
    for (i, name) in caps.unwrap_or_default().iter().enumerate() {
        match name.parse::<Capability>() {
            Ok(capability) if capability != Capability::ALL => capabilities.push(capability),
            _ => {
                let shown = shorten(name);
                let message = format!("{shown:?} is not a Linux capability; give a name like CAP_SYS_ADMIN");
                wrong.add(format!("{path}.caps[{i}]"), message);
            }
        }
    }
    let min_kernel = min_kernel.filter(|text| !text.is_empty()).and_then(|text| {
        let parsed = text
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?)));
        if parsed.is_none() {
            let shown = shorten(&text);
            let message = format!("{shown:?} is not a version of the kernel; give one like 4.8");
            wrong.add(format!("{path}.minKernel"), message);
        }
        parsed
    });
    SeccompCondition { architectures, capabilities, min_kernel }
}
