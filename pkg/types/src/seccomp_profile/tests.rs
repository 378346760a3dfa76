use super::*;

fn wrong(json: &str) -> Vec<String> {
    let wrong = SeccompProfile::parse(json.as_bytes()).unwrap_err();
    wrong.0.iter().map(ToString::to_string).collect()
}

/// A profile that allows all but what `rules` say.
fn with_rules(rules: &str) -> String {
    format!(r#"{{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{rules}]}}"#)
}

#[test]
fn every_field_of_dockers_format_is_read() {
    let json = r#"{
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 38,
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": null}
        ],
        "syscalls": [
            {
                "names": ["read", "write"], "action": "SCMP_ACT_ALLOW", "args": null, "comment": "always",
                "includes": {}, "excludes": {}
            },
            {
                "name": "clone", "action": "SCMP_ACT_ERRNO", "errnoRet": 1,
                "args": [{"index": 0, "value": 2114060288, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
                "includes": {"arches": ["amd64", "x32"], "caps": ["CAP_SYS_ADMIN"], "minKernel": "4.8"},
                "excludes": {"caps": ["CAP_BPF"]}
            }
        ]
    }"#;
    let read = SeccompProfile::parse(json.as_bytes()).unwrap();
    let clone = SeccompRule {
        names: vec!["clone".into()],
        action: SeccompAction::Errno,
        errno: Some(1),
        arguments: vec![SeccompArgument {
            index: 0,
            value: 2_114_060_288,
            value_two: 0,
            operator: SeccompOperator::MaskedEqual,
        }],
        includes: SeccompCondition {
            architectures: vec!["amd64".into(), "x32".into()],
            capabilities: vec!["SYS_ADMIN".parse().unwrap()],
            min_kernel: Some((4, 8)),
        },
        excludes: SeccompCondition {
            capabilities: vec!["BPF".parse().unwrap()],
            ..SeccompCondition::default()
        },
    };
    let plain = SeccompRule {
        names: vec!["read".into(), "write".into()],
        action: SeccompAction::Allow,
        errno: None,
        arguments: Vec::new(),
        includes: SeccompCondition::default(),
        excludes: SeccompCondition::default(),
    };
    use SeccompArchitecture::{Aarch64, X32, X86, X86_64};
    assert_eq!(
        read,
        SeccompProfile {
            default_action: SeccompAction::Errno,
            default_errno: Some(38),
            architectures: SeccompArchitectures::Mapped(vec![
                (X86_64, vec![X86, X32]),
                (Aarch64, Vec::new())
            ]),
            rules: vec![plain, clone],
        }
    );
}

#[test]
fn smallest_profile_has_a_default_action() {
    let read = SeccompProfile::parse(br#"{"defaultAction": "SCMP_ACT_ALLOW"}"#).unwrap();
    assert_eq!(read.architectures, SeccompArchitectures::Listed(Vec::new()));
    assert!(read.rules.is_empty() && read.default_errno.is_none());
    assert_eq!(wrong("{}"), ["defaultAction: is missing; give an action like SCMP_ACT_ERRNO"]);
}

#[test]
fn each_wrong_field_is_named() {
    for (json, expected) in [
        (
            r#"{"defaultAction": "ALLOW"}"#.to_owned(),
            "defaultAction: \"ALLOW\" is not an action; give one of SCMP_ACT_KILL, ",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_NOTIFY"}"#.to_owned(),
            "defaultAction: is SCMP_ACT_NOTIFY, which needs",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "defaultErrnoRet": 1}"#.to_owned(),
            "defaultErrnoRet: is only for SCMP_ACT_ERRNO",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 4096}"#.to_owned(),
            "defaultErrnoRet: 4096 is not an error number",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 0}"#.to_owned(),
            "defaultErrnoRet: is 0, with which calls succeed and do nothing",
        ),
        (
            with_rules(r#"{"names": ["capset"], "action": "SCMP_ACT_ERRNO", "errnoRet": 0}"#),
            "syscalls[0].errnoRet: is 0, with which calls succeed and do nothing",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_Z80"]}"#.to_owned(),
            "architectures[0]: \"SCMP_ARCH_Z80\" is not an architecture",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86"],
                "archMap": [{"architecture": "SCMP_ARCH_X86_64"}]}"#
                .to_owned(),
            "archMap: is set beside architectures",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "archMap": [{"architecture": "amd64"}]}"#.to_owned(),
            "archMap[0].architecture: \"amd64\" is not an architecture",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/run/x"}"#.to_owned(),
            "listenerPath: is not supported",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "flags": ["SECCOMP_FILTER_FLAG_LOG"]}"#.to_owned(),
            "flags: is not supported",
        ),
        (with_rules(r#"{"names": [], "action": "SCMP_ACT_ALLOW"}"#), "syscalls[0].names: is empty"),
        (
            with_rules(r#"{"names": ["a"], "name": "b", "action": "SCMP_ACT_ALLOW"}"#),
            "syscalls[0].name: is set beside names",
        ),
        (
            with_rules(r#"{"names": ["mkdir "], "action": "SCMP_ACT_ALLOW"}"#),
            "syscalls[0].names[0]: \"mkdir \" is not the name of a system call",
        ),
        (
            with_rules(r#"{"names": ["a"], "action": "SCMP_ACT_NOTIFY"}"#),
            "syscalls[0].action: is SCMP_ACT_NOTIFY, which needs",
        ),
        (
            with_rules(r#"{"names": ["a"], "action": "SCMP_ACT_KILL", "errnoRet": 1}"#),
            "syscalls[0].errnoRet: is only for SCMP_ACT_ERRNO",
        ),
        (
            with_rules(
                r#"{"names": ["a"], "action": "SCMP_ACT_KILL", "args": [{"index": 6, "value": 0, "op": "x"}]}"#,
            ),
            "syscalls[0].args[0].index: 6 is not an argument; give 0 to 5",
        ),
        (
            with_rules(
                r#"{"names": ["a"], "action": "SCMP_ACT_KILL", "args": [{"index": 5, "value": 0, "op": "x"}]}"#,
            ),
            "syscalls[0].args[0].op: \"x\" is not an operator; give one of SCMP_CMP_NE, ",
        ),
        (
            with_rules(r#"{"names": ["a"], "action": "SCMP_ACT_KILL", "includes": {"arches": ["x86_64"]}}"#),
            "syscalls[0].includes.arches[0]: \"x86_64\" is not an architecture as Docker names it",
        ),
        (
            with_rules(r#"{"names": ["a"], "action": "SCMP_ACT_KILL", "excludes": {"caps": ["ALL"]}}"#),
            "syscalls[0].excludes.caps[0]: \"ALL\" is not a Linux capability",
        ),
        (
            with_rules(r#"{"names": ["a"], "action": "SCMP_ACT_KILL", "excludes": {"minKernel": "4"}}"#),
            "syscalls[0].excludes.minKernel: \"4\" is not a version of the kernel",
        ),
    ] {
        let found = wrong(&json);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{json}: {found:?}");
    }
}

#[test]
fn what_is_no_profile_is_refused() {
    for json in [
        "",
        "allow all",
        "[]",
        r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscals": []}"#,
        r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["a"]}]}"#,
        r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": "a", "action": "SCMP_ACT_KILL"}]}"#,
        r#"{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": -1}"#,
    ] {
        let found = wrong(json);
        assert!(found[0].starts_with("is not a seccomp profile in Docker's format: "), "{json}: {found:?}");
    }
    let long = format!("{{}}{}", " ".repeat(MAX_SECCOMP_PROFILE));
    assert_eq!(wrong(&long), ["has 65538 bytes, more than 65536"]);
}

#[test]
fn rules_are_bounded() {
    let condition = |count: usize| vec![r#"{"index":0,"value":1,"op":"SCMP_CMP_EQ"}"#; count].join(",");
    let rule = |names: &[String], args: &str| {
        let names = names.join("\",\"");
        with_rules(&format!(r#"{{"names":["{names}"],"action":"SCMP_ACT_ERRNO","args":[{args}]}}"#))
    };
    let calls: Vec<String> = (0..300).map(|number| format!("call{number}")).collect();
    let longest = rule(&calls[..8], &condition(72));
    assert_eq!(SeccompProfile::parse(longest.as_bytes()).unwrap().max_instructions(), 4066);
    let too_long = rule(&calls[..8], &condition(73));
    assert!(SeccompProfile::parse_accepted(too_long.as_bytes()).is_ok());
    let found = wrong(&too_long);
    let expected = "syscalls: are a filter of up to 4122 instructions, and the kernel takes 4096; use fewer calls or \
                    conditions";
    assert_eq!(found, [expected]);
    // A name that is repeated is one.
    let repeated = vec!["dup".to_owned(); 5000];
    let read = SeccompProfile::parse(rule(&repeated, &condition(100)).as_bytes()).unwrap();
    assert_eq!(read.rules[0].names, ["dup"]);
    // Conditions on several arguments are one.
    let both = r#"{"index":0,"value":1,"op":"SCMP_CMP_EQ"},{"index":1,"value":1,"op":"SCMP_CMP_EQ"}"#;
    assert!(SeccompProfile::parse(rule(&calls, both).as_bytes()).is_ok());
    // What is refused beside a default that refuses is listed twice, what is allowed once.
    let beside = |count: usize, action: &str| {
        let names: Vec<String> = (0..count).map(|number| format!("\"c{number}\"")).collect();
        let names = names.join(",");
        let json = format!(
            r#"{{"defaultAction":"SCMP_ACT_KILL","syscalls":[{{"names":[{names}],"action":"{action}"}}]}}"#
        );
        SeccompProfile::parse(json.as_bytes()).is_ok()
    };
    assert!(beside(800, "SCMP_ACT_ALLOW") && !beside(820, "SCMP_ACT_ALLOW"));
    assert!(beside(400, "SCMP_ACT_LOG") && !beside(420, "SCMP_ACT_LOG"));
    // What happens anyway is in no filter.
    assert!(beside(4000, "SCMP_ACT_KILL") && beside(4000, "SCMP_ACT_KILL_THREAD"));
    let names = calls.join("\",\"");
    let anyway = format!(
        r#"{{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
            {{"names": ["{names}"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}}
        ]}}"#
    );
    assert_eq!(SeccompProfile::parse(anyway.as_bytes()).unwrap().max_instructions(), 13);
}

#[test]
fn conditions_of_one_call_have_one_action() {
    let rule = |name: &str, action: &str, index: u64| {
        format!(
            r#"{{"names": ["other", "{name}"], "action": "{action}",
                "args": [{{"index": {index}, "value": 1, "op": "SCMP_CMP_EQ"}}]}}"#
        )
    };
    let two = |first: String, second: String| with_rules(&format!("{first}, {second}"));
    let found = wrong(&two(rule("read", "SCMP_ACT_ERRNO", 0), rule("read", "SCMP_ACT_LOG", 1)));
    assert_eq!(found.len(), 1, "{found:?}");
    let expected = "syscalls[1]: does something else with other than syscalls[0], and both have args";
    assert!(found[0].starts_with(expected), "{found:?}");
    // Another error is another action, and the error is EPERM if nothing is said.
    let errno =
        |number: u32| rule("read", &format!(r#"SCMP_ACT_ERRNO", "errnoRet": {number}, "comment": ""#), 1);
    let json = two(rule("read", "SCMP_ACT_ERRNO", 0), errno(1));
    assert!(SeccompProfile::parse(json.as_bytes()).is_ok());
    assert_eq!(wrong(&two(rule("read", "SCMP_ACT_ERRNO", 0), errno(2))).len(), 1);
    // What happens anyway is no rule, and one without conditions replaces the others.
    let json = two(rule("read", "SCMP_ACT_ALLOW", 0), rule("read", "SCMP_ACT_LOG", 1));
    assert!(SeccompProfile::parse(json.as_bytes()).is_ok());
    let whole = r#"{"names": ["other"], "action": "SCMP_ACT_KILL"}"#.to_owned();
    assert!(SeccompProfile::parse(two(rule("read", "SCMP_ACT_LOG", 0), whole).as_bytes()).is_ok());
}

#[test]
fn normal_form_has_neither_spaces_nor_an_order() {
    let normal = SeccompProfile::normalize(br#" { "syscalls" : [], "defaultAction" : "SCMP_ACT_ALLOW" } "#);
    assert_eq!(normal.unwrap(), r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[]}"#);
    let long = format!(r#"{{"defaultAction":{}"SCMP_ACT_ALLOW"}}"#, " ".repeat(MAX_SECCOMP_PROFILE));
    assert!(SeccompProfile::normalize(long.as_bytes()).is_ok());
    assert!(SeccompProfile::normalize(b"{}").is_err() && SeccompProfile::normalize(b"").is_err());
}
