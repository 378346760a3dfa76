//! What is refused: file, line, column, and what to do.

use warren_compose::stack::SecretObjectSource;
use warren_documents::{DataSource, DocumentKind, Documents, SourceText, read_admission_policy};
use warren_types::{ServiceMode, VolumeDriver};

use crate::read;

const HEAD: &str = "apiVersion: warren.io/v1\nkind: Service\nmetadata: {name: web}\nspec:\n";

/// The problems of a service with these lines in its spec.
#[track_caller]
fn check_spec(lines: &str, expected: &[&str]) {
    check(&format!("{HEAD}{lines}"), expected);
}

#[track_caller]
fn check(text: &str, expected: &[&str]) {
    let found = read(text).err().unwrap_or_default();
    assert_eq!(found, expected, "{text}");
}

#[test]
fn wrong_values_are_named_with_their_position() {
    let image = "  task:\n    image: nginx:1\n";
    check_spec(image, &[]);
    let task = |line: &str| format!("{image}    {line}\n");
    for (line, expected) in [
        ("prot: 1", "7:5: spec.task: \"prot\" is not a field here"),
        ("imge: x", "7:5: spec.task: \"imge\" is not a field here; did you mean image?"),
        ("env: {A: b}", "7:10: spec.task.env: is a mapping; give a list"),
        (
            "env: [{name: A, vlue: b}]",
            "7:21: spec.task.env[0]: \"vlue\" is not a field here; did you mean value?",
        ),
        ("env: [{name: A}]", "7:11: spec.task.env[0]: value is missing; give it"),
        ("env: [{name: A, value: [b]}]", "7:28: spec.task.env[0].value: is a list; give a text"),
        ("tty: 'true'", "7:10: spec.task.tty: is a text; give true or false"),
        ("tty: 1", "7:10: spec.task.tty: is a number; give true or false"),
        ("oomScoreAdj: high", "7:18: spec.task.oomScoreAdj: is a text; give a whole number"),
        ("limits: {pids: -1}", "7:20: spec.task.limits.pids: -1 is not between 0 and 4294967295"),
        ("limits: {pids: 1.5}", "7:20: spec.task.limits.pids: is a number; give a whole number"),
        ("limits: {memory: much}", "7:22: spec.task.limits.memory: \"much\" is not "),
        (
            "limits: {memory: 1Ki}",
            "7:22: spec.task.limits.memory: 1KiB is below the runtime's minimum of 6MiB",
        ),
        ("limits: 1", "7:13: spec.task.limits: is a number; give a mapping with fields like cpu"),
        ("stopGrace: 10", "7:16: spec.task.stopGrace: time unit needed, for example 10sec or 10ms"),
        ("pull: alwys", "7:11: spec.task.pull: \"alwys\" is not a value of this field; did you mean always?"),
        ("network: [back]", "7:14: spec.task.network: is a list; give "),
        ("network: {host: 1}", "7:14: spec.task.network: host has no value; write only `host`"),
        ("network: networks", "7:14: spec.task.network: needs a value; write `networks: VALUE`"),
        (
            "health: {probe: {http: {port: 80}}}",
            "7:28: spec.task.health.probe.http: path is missing; give it",
        ),
        (
            "health: {probe: {tcp: {port: 70000}}}",
            "7:34: spec.task.health.probe.tcp.port: 70000 is not between 0 and",
        ),
        (
            "health: {probe: {tpc: {port: 7}}}",
            "7:22: spec.task.health.probe: \"tpc\" is not a value of this field; did",
        ),
        (
            "capAdd: [NET_ADMIN, FLY]",
            "7:25: spec.task.capAdd[1]: \"FLY\" is not a Linux capability; give a name",
        ),
        ("image: nginx:2", "7:5: \"image\" is given twice; the other one is in line 6"),
        ("env: *unknown", "7:"),
        ("env: !override []", "7:20: spec.task.env: has a tag of Compose files; leave it out"),
    ] {
        let found = read(&format!("{HEAD}{}", task(line))).unwrap_err();
        assert!(found.len() == 1 && found[0].starts_with(&format!("a.yaml:{expected}")), "{line}: {found:?}");
    }
    check_spec(
        "  mode: 3\n",
        &["a.yaml:5:9: spec.mode: \"3\" is not a value of this field; there are replicated, global"],
    );
    check_spec(
        "  mode: {replicated: {replicas: 2, most: 3}}\n",
        &["a.yaml:5:36: spec.mode.replicated: \"most\" is not a field here; there are replicas"],
    );
    check_spec("  name: web\n", &["a.yaml:5:3: spec: name is not a field here; give it in `metadata`"]);
    check_spec("  task:\n", &["a.yaml:5:3: spec: task is missing; give it"]);
}

#[test]
fn all_violations_of_a_spec_are_listed() {
    let lines = "  task:\n    image: UPPER\n    workdir: x\n    env:\n    - {name: A, value: 1}\n    - {name: A, \
                 value: 2}\n  ports:\n  - {containerPort: 0}\n";
    let found = read(&format!("{HEAD}{lines}")).unwrap_err();
    let positions: Vec<&str> = found.iter().map(|problem| problem.split(": ").nth(1).unwrap()).collect();
    assert_eq!(
        positions,
        ["spec.task.image", "spec.task.env[1].name", "spec.task.workdir", "spec.ports[0].containerPort"]
    );
    assert!(found[0].starts_with("a.yaml:6:12: ") && found[1].starts_with("a.yaml:10:14: "), "{found:?}");
    check(
        "apiVersion: warren.io/v1\nkind: Network\nmetadata:\n  name: a\n  labels: {'a b': c}\n",
        &[
            "a.yaml:5:19: metadata.labels[\"a b\"]: a label's key has 1 to 128 letters, digits, '.', '_', '-' or '/', \
           its value at most 1024 bytes",
        ],
    );
}

#[test]
fn wrong_heads_are_refused() {
    let network = "metadata: {name: a}\n";
    check(&format!("apiVersion: warren.io/v1\nkind: Network\n{network}"), &[]);
    check(&format!("kind: Network\n{network}"), &["a.yaml:1:1: apiVersion is missing; give it"]);
    check(
        &format!("apiVersion: v1\nkind: Network\n{network}"),
        &["a.yaml:1:13: apiVersion: \"v1\" is not known; give warren.io/v1"],
    );
    let kind = |kind: &str| format!("apiVersion: warren.io/v1\nkind: {kind}\n{network}");
    check(&kind("service"), &["a.yaml:2:7: kind: \"service\" is not a kind; did you mean Service?"]);
    check(
        &kind("Pod"),
        &[
            "a.yaml:2:7: kind: \"Pod\" is not a kind; there are Node, Network, Volume, Secret, Config, Service",
        ],
    );
    check(
        &format!("{}sepc: {{}}\n", kind("Network")),
        &["a.yaml:4:1: \"sepc\" is not a field here; did you mean spec?"],
    );
    check(
        "services: {web: {image: nginx}}\n",
        &[
            "a.yaml:1:1: \"services\" is not a field here; Compose files are deployed with `warren deploy -c FILE`",
        ],
    );
    check(
        "apiVersion: warren.io/v1\nkind: Network\n",
        &["a.yaml:1:1: metadata is missing; give `metadata: {name: NAME}`"],
    );
    check(
        "apiVersion: warren.io/v1\nkind: Network\nmetadata: {name: a, lables: {}}\n",
        &["a.yaml:3:21: metadata: \"lables\" is not a field here; did you mean labels?"],
    );
    let bad_name = read("apiVersion: warren.io/v1\nkind: Network\nmetadata: {name: 'a b'}\n").unwrap_err();
    assert!(
        bad_name[0].starts_with("a.yaml:3:18: metadata.name: \"a b\" is not a network name"),
        "{bad_name:?}"
    );
    check("just a text\n", &["a.yaml:1:1: is a text; give a mapping with apiVersion, kind, metadata, spec"]);
    let tabs = read(&format!("{HEAD}\ttask:\n\t\timage: nginx\n")).unwrap_err();
    assert!(
        tabs[0].starts_with("a.yaml:5:") && tabs[0].ends_with("; indent with spaces, not tabs"),
        "{tabs:?}"
    );
}

#[test]
fn several_documents_are_read_and_every_wrong_one_is_reported() {
    let document = |kind: &str, name: &str, spec: &str| {
        format!("---\napiVersion: warren.io/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n")
    };
    let found = read(
        &[
            document("Network", "a", "{internal: true}"),
            "---\n# nothing\n".to_owned(),
            document("Volume", "a", "{driver: local}"),
            document("Secret", "a", "{stringData: x}"),
            document("Config", "a", "{data: eHg=}"),
            document("Config", "b", "{file: b.txt}"),
            document("Config", "c", "{}"),
            document("Service", "a", "{task: {image: nginx}, ports: [{containerPort: 80}]}"),
            document("Node", "n1", "{availability: drain, taints: ['a=b:NoSchedule']}"),
        ]
        .concat(),
    )
    .unwrap();
    let objects = &found.objects;
    assert!(objects.networks[0].internal && objects.volumes[0].driver == VolumeDriver::Local);
    let sources: Vec<&SecretObjectSource> =
        objects.secret_objects.iter().map(|object| &object.source).collect();
    let (given, existing) = (&SecretObjectSource::Document, &SecretObjectSource::Existing);
    assert_eq!(sources, [given, given, given, existing]);
    let data = |kind, name: &str| found.data.get(&(kind, name.parse().unwrap()));
    assert_eq!(data(DocumentKind::Secret, "a"), Some(&DataSource::Bytes(b"x".to_vec())));
    assert_eq!(data(DocumentKind::Config, "a"), Some(&DataSource::Bytes(b"xx".to_vec())));
    assert_eq!(data(DocumentKind::Config, "b"), Some(&DataSource::File("b.txt".to_owned())));
    let service = &objects.services[0];
    assert_eq!((service.spec.mode, service.ports.len()), (ServiceMode::Replicated { replicas: 1 }, 1));
    assert_eq!(service.ports[0].to_owned().problem("x").to_string(), "a.yaml:37:38: spec.ports[0]: x");
    assert_eq!(found.nodes[0].fields.taints.as_ref().unwrap().len(), 1);
    assert!(!format!("{found:?}").contains("eHg"), "no data is shown");

    let wrong = [
        document("Network", "a", "{internal: 1}"),
        document("Network", "b", "{}"),
        document("Pod", "c", "{}"),
    ];
    let found = read(&wrong.concat()).unwrap_err();
    assert_eq!(found.len(), 2, "{found:?}");
    let twice =
        [document("Network", "a", "{}"), document("Volume", "a", "{}"), document("Network", "a", "{}")];
    check(
        &twice.concat(),
        &["a.yaml:14:18: metadata.name: there is a network a at a.yaml:4:18 already; remove one"],
    );
    check(
        &document("Secret", "a", "{data: eHg=, stringData: x}"),
        &["a.yaml:5:7: spec: give only one of data, stringData and file"],
    );
    let secret = read(&document("Secret", "a", "{data: hunter2}")).unwrap_err();
    assert_eq!(secret, ["a.yaml:5:14: spec.data: is not base64; give text as stringData"]);
}

#[test]
fn json_and_lists_of_documents_are_read() {
    let one = r#"{"apiVersion": "warren.io/v1", "kind": "Network", "metadata": {"name": "a"}}"#;
    assert_eq!(read(one).unwrap().names.len(), 1);
    let indented = "{\n\t\"apiVersion\": \"warren.io/v1\",\n\t\"kind\": \"Network\",\n\t\"metadata\": {\"name\": \
                    \"a\"}\n}\n";
    assert_eq!(read(indented).unwrap().names.len(), 1, "JSON may be indented with tabs");
    assert_eq!(read(&format!("[{one}, {}]", one.replace("\"a\"", "\"b\""))).unwrap().names.len(), 2);
}

#[test]
fn files_are_read_together() {
    let network = "apiVersion: warren.io/v1\nkind: Network\nmetadata: {name: a}\n";
    let files = ["a.yaml", "b.yaml"].map(|name| SourceText { name, text: network });
    let problems = Documents::read(&files).unwrap_err();
    assert_eq!(
        problems[0].to_string(),
        "b.yaml:3:18: metadata.name: there is a network a at a.yaml:3:18 already; remove one"
    );
    assert!(Documents::read(&[]).unwrap().names.is_empty());
}

#[test]
fn example_of_the_documentation_is_read() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/documents.md")).unwrap();
    let example = text.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let found = read(example).unwrap();
    let kinds: std::collections::BTreeSet<DocumentKind> =
        found.names.iter().map(|named| named.kind).collect();
    assert_eq!(kinds, DocumentKind::ALL.into());
}

#[test]
fn admission_policy_of_the_documentation_is_read() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md")).unwrap();
    let example = text.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let policy = read_admission_policy(SourceText { name: "a.yaml", text: example }).unwrap();
    assert_eq!(policy.operator.max_replicas, Some(50));
    assert_eq!((policy.signatures.len(), policy.signatures[0].keys.len()), (1, 1));
}

#[test]
fn wrong_admission_policy_is_refused_with_its_position() {
    let check = |text: &str, expected: &[&str]| {
        let found = read_admission_policy(SourceText { name: "a.yaml", text }).err().unwrap_or_default();
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{text}");
    };
    let head = "apiVersion: warren.io/v1\nkind: AdmissionPolicy\n";
    let operator = |line: &str| format!("{head}spec:\n  operator:\n    {line}\n");
    check(head, &[]);
    check(&operator("{privileged: true, capAdd: [net_admin], limits: {cpu: 2, memory: 1Gi}}"), &[]);
    for (line, expected) in [
        (
            "privileges: true",
            "a.yaml:5:5: spec.operator: \"privileges\" is not a field here; did you mean privileged?",
        ),
        ("privileged: 1", "a.yaml:5:17: spec.operator.privileged: is a number; give true or false"),
        (
            "limits: {gpu: 1}",
            "a.yaml:5:14: spec.operator.limits: \"gpu\" is not a field here; did you mean cpu?",
        ),
        (
            "minOomScoreAdj: 5",
            "a.yaml:5:21: spec.operator.minOomScoreAdj: 5 is out of range; give -1000 to 0",
        ),
        (
            "registries: [ghcr.io, acme]",
            "a.yaml:5:27: spec.operator.registries[1]: \"acme\" is not a registry; give HOST[:PORT][/REPOSITORY]",
        ),
    ] {
        check(&operator(line), &[expected]);
    }
    check(
        &format!("{head}spec: {{viewer: {{}}}}\n"),
        &["a.yaml:3:8: spec: \"viewer\" is not a field here; there are operator, signatures"],
    );
    let signatures = |rule: &str| format!("{head}spec:\n  signatures:\n    - {rule}\n");
    for (rule, expected) in [
        (
            "{registry: ghcr.io, keys: [MFkw]}",
            "a.yaml:5:34: spec.signatures[0].keys[0]: is not a public key in PEM; give the text of cosign.pub, from \
             its first line on",
        ),
        ("{registry: ghcr.io}", "a.yaml:5:7: spec.signatures[0].keys: is empty; give a public key"),
        (
            "{image: ghcr.io}",
            "a.yaml:5:8: spec.signatures[0]: \"image\" is not a field here; there are registry, keys",
        ),
    ] {
        check(&signatures(rule), &[expected]);
    }
    let network = "apiVersion: warren.io/v1\nkind: Network\nmetadata: {name: a}\n";
    check(network, &["a.yaml:2:7: kind: \"Network\" is not AdmissionPolicy"]);
    check(
        &format!("{head}metadata: {{name: a}}\n"),
        &["a.yaml:3:11: metadata: is not a field here: a cluster has one admission policy; leave it out"],
    );
    let two = read_admission_policy(SourceText { name: "a.yaml", text: &format!("{head}---\n{head}") });
    assert!(two.is_err(), "{two:?}");
    let found = read(head).unwrap_err();
    assert!(found[0].contains("it is set with `warren cluster policy set -f FILE`"), "{found:?}");
}
