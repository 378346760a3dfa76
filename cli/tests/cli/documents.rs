//! `warren apply`, `warren diff`, `warren rm -f` and `inspect --as-document`.

use serde_json::Value;

use crate::user::CliUser;

const SHOP: &str = "
apiVersion: warren.io/v1
kind: Service
metadata: {name: web, labels: {app: shop}}
spec:
  mode: {replicated: {replicas: 2}}
  task:
    image: runs
    env: [{name: MODE, value: fast}]
    limits: {cpu: 0.5, memory: 256Mi}
    secrets: [{source: key}]
    configs: [{source: app}]
    mounts: [{target: /data, source: {volume: {name: data}}}]
    network: {networks: [{network: back}]}
---
apiVersion: warren.io/v1
kind: Network
metadata: {name: back, labels: {app: shop}}
spec: {internal: true}
---
apiVersion: warren.io/v1
kind: Volume
metadata: {name: data, labels: {app: shop}}
---
apiVersion: warren.io/v1
kind: Secret
metadata: {name: key, labels: {app: shop}}
spec: {stringData: hunter2}
---
apiVersion: warren.io/v1
kind: Config
metadata: {name: app, labels: {app: shop}}
spec: {file: app.conf}
";

fn write(person: &CliUser, name: &str, text: &str) -> String {
    let path = person.path(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A person with the documents of a shop in a file.
fn shop() -> (CliUser, String) {
    let person = CliUser::new();
    write(&person, "app.conf", "one");
    let file = write(&person, "shop.yaml", SHOP);
    (person, file)
}

fn words(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn documents_are_applied_in_order_and_the_second_time_nothing_changes() {
    let (person, file) = shop();
    let applied = person.warren(&["apply", "-f", &file]);
    assert_eq!(applied.code, 0, "{applied:?}");
    let expected = "network back created\nvolume data created\nsecret key created\nconfig app created\nservice web \
                    created\n";
    assert_eq!(applied.stdout, expected);
    let again = person.warren(&["apply", "-f", &file]);
    let expected = "network back is unchanged\nvolume data is unchanged\nsecret key is unchanged\nconfig app is \
                    unchanged\nservice web is unchanged\n";
    assert_eq!((again.code, again.stdout.as_str()), (0, expected), "{again:?}");
    let steps: Value = serde_json::from_str(&person.ok(&["apply", "-f", &file, "-o", "json"])).unwrap();
    assert_eq!(steps[4], serde_json::json!({"action": "unchanged", "kind": "service", "name": "web"}));
    let spec: Value = serde_json::from_str(&person.ok(&["service", "inspect", "web", "-o", "json"])).unwrap();
    assert_eq!(spec["spec"]["task"]["limits"], serde_json::json!({"cpu": "0.5", "memory": "256MiB"}));
}

#[test]
fn directory_and_standard_input_are_read() {
    let (person, _) = shop();
    let directory = person.path("objects");
    std::fs::create_dir(&directory).unwrap();
    let network =
        |name: &str| format!("apiVersion: warren.io/v1\nkind: Network\nmetadata: {{name: {name}}}\n");
    for (file, name) in [("b.yaml", "two"), ("a.yml", "one"), ("c.json", "three"), ("d.txt", "none")] {
        std::fs::write(directory.join(file), network(name)).unwrap();
    }
    let applied = person.ok(&["apply", "-f", directory.to_str().unwrap()]);
    assert_eq!(applied, "network one created\nnetwork two created\nnetwork three created\n");
    let piped = person.warren_with(&["apply", "-f", "-"], network("four").as_bytes());
    assert_eq!(piped.stdout, "network four created\n", "{piped:?}");
    let empty = person.path("empty");
    std::fs::create_dir(&empty).unwrap();
    let found = person.fails(2, &["apply", "-f", empty.to_str().unwrap()]);
    assert!(found.contains("has no file *.yaml, *.yml or *.json"), "{found}");
    person.fails(3, &["apply", "-f", person.path("none.yaml").to_str().unwrap()]);
    let nothing = write(&person, "nothing.yaml", "# nothing\n");
    let found = person.fails(2, &["apply", "-f", &nothing]);
    assert!(found.contains("the files have no documents"), "{found}");
    let binary = person.path("binary.yaml");
    std::fs::write(&binary, b"\xff\xfe").unwrap();
    let found = person.fails(2, &["apply", "-f", binary.to_str().unwrap()]);
    assert!(found.contains("is not UTF-8 text"), "{found}");
}

#[test]
fn wrong_documents_change_nothing_and_are_named_with_their_lines() {
    let (person, _) = shop();
    let wrong = write(&person, "wrong.yaml", &SHOP.replace("image: runs", "image: runs\n    imge: x"));
    let found = person.fails(2, &["apply", "-f", &wrong]);
    assert!(
        found.contains("wrong.yaml:9:5: spec.task: \"imge\" is not a field here; did you mean image?"),
        "{found}"
    );
    let found = person.fails(2, &["diff", "-f", &wrong]);
    assert!(found.contains("wrong.yaml:9:5"), "{found}");
    let missing = write(&person, "missing.yaml", &SHOP.replace("app.conf", "no.conf"));
    let found = person.fails(3, &["apply", "-f", &missing]);
    assert!(
        found.contains("missing.yaml:32:18: metadata.name: ") && found.contains("no such file"),
        "{found}"
    );
    let refused = write(&person, "refused.yaml", &SHOP.replace("image: runs", "image: refused"));
    let found = person.fails(4, &["apply", "-f", &refused]);
    assert!(found.contains("refused.yaml:4:18: service web: it is refused"), "{found}");
    assert_eq!(person.ok(&["network", "ls", "-q"]), "default\n", "nothing is applied");
    let existing = write(&person, "existing.yaml", &SHOP.replace("spec: {stringData: hunter2}", "spec: {}"));
    let found = person.fails(4, &["apply", "-f", &existing]);
    assert!(found.contains("secret key does not exist; give its data as `data`"), "{found}");
}

#[test]
fn differences_are_shown_by_field_with_the_places_of_tasks_and_without_secrets() {
    let (person, file) = shop();
    let before = person.warren(&["diff", "-f", &file]);
    assert_eq!(before.code, 1, "{before:?}");
    let expected = "create network back\ncreate volume data\ncreate secret key\ncreate config app\ncreate service \
                    web\n\n\
                    TASK    CHANGE   NODE     REASON\nweb.1   new      node-1\nweb.2   new      node-2\n";
    assert_eq!(before.stdout, expected);
    person.ok(&["apply", "-f", &file]);
    let same = person.warren(&["diff", "-f", &file]);
    assert_eq!((same.code, same.stdout.as_str()), (0, ""), "{same:?}");

    let edited =
        SHOP.replace("hunter2", "hunter3").replace("value: fast", "value: slow").replace("256Mi", "512Mi");
    let edited = write(&person, "edited.yaml", &edited);
    let version = |noun: &str, name: &str| -> Value {
        serde_json::from_str::<Value>(&person.ok(&[noun, "inspect", name, "-o", "json"])).unwrap()["version"]
            .clone()
    };
    let (web, key) = (version("service", "web"), version("secret", "key"));
    let after = person.warren(&["diff", "-f", &edited]);
    assert_eq!(after.code, 1, "{after:?}");
    let expected = format!(
        "update secret key (version {key})\n  the data differs: 7 -> 7 bytes\nupdate service web (version {web})\n  \
         spec.task.env ~MODE\n  spec.task.limits.memory 256MiB -> 512MiB\n\nTASK    CHANGE   NODE     REASON\nweb.1   \
         new      node-1\nweb.1   stops    node-1\nweb.2   new      node-2\nweb.2   stops    node-2\n"
    );
    assert_eq!(after.stdout, expected);
    assert!(!after.stdout.contains("hunter") && !after.stdout.contains("slow"));
    let document: Value =
        serde_json::from_str(&person.warren(&["diff", "-f", &edited, "-o", "json"]).stdout).unwrap();
    assert_eq!(document["steps"][1]["changes"][0], "spec.task.env ~MODE");
    assert_eq!(
        document["tasks"][1],
        serde_json::json!({"service": "web", "slot": 1, "change": "stops", "node": "node-1"})
    );
    assert_eq!(version("service", "web"), web, "nothing is changed");

    let dry = person.ok(&["apply", "-f", &edited, "--dry-run"]);
    let expected = [
        "ACTION KIND NAME",
        "keep network back",
        "keep volume data",
        "update secret key",
        "keep config app",
        "update service web",
        "",
        "TASK CHANGE NODE REASON",
    ];
    assert_eq!(words(&dry)[..8], expected);
    let applied = person.ok(&["apply", "-f", &edited]);
    assert!(applied.contains("secret key updated: version 2\n"), "{applied}");
    assert!(applied.contains("service web updated: revision "), "{applied}");
    let pending = write(&person, "pending.yaml", &SHOP.replace("image: runs", "image: pending"));
    let found = person.warren(&["diff", "-f", &pending]).stdout;
    assert!(found.contains("web.1   new               0 of 1 nodes fit: 1 lacks memory\n"), "{found}");
}

#[test]
fn prune_removes_what_has_the_label_and_no_document() {
    let (person, file) = shop();
    person.ok(&["apply", "-f", &file]);
    person.ok(&["network", "create", "other", "--label", "app=other"]);
    let network = "apiVersion: warren.io/v1\nkind: Network\nmetadata: {name: back, labels: {app: shop}}\nspec: \
                   {internal: true}\n";
    let less = write(&person, "less.yaml", network);
    person.fails(2, &["apply", "-f", &less, "--prune"]);
    let found = person.fails(2, &["apply", "-f", &less, "--prune", "-l", "app=none"]);
    assert!(
        found.contains("less.yaml:3:18: metadata.name: network back does not have the label app=none"),
        "{found}"
    );
    let dry = person.ok(&["apply", "-f", &less, "--prune", "-l", "app=shop", "--dry-run"]);
    let expected = [
        "ACTION KIND NAME",
        "keep network back",
        "remove service web",
        "remove secret key",
        "remove config app",
    ];
    assert_eq!(words(&dry)[..5], expected);
    let pruned = person.ok(&["apply", "-f", &less, "--prune", "-l", "app=shop"]);
    assert_eq!(
        pruned,
        "network back is unchanged\nservice web removed\nsecret key removed\nconfig app removed\n"
    );
    assert_eq!(person.ok(&["volume", "ls", "-q"]), "data\n", "volumes stay");
    let pruned = person.ok(&["apply", "-f", &less, "--prune", "-l", "app=shop", "--prune-volumes"]);
    let expected =
        "network back is unchanged\nvolume data removed; its data stays until `warren volume purge`\n";
    assert_eq!(pruned, expected);
    assert!(person.ok(&["network", "ls", "-q"]).contains("other\n"));
}

#[test]
fn removal_is_in_reverse_order_and_names_what_is_missing() {
    let (person, file) = shop();
    person.ok(&["apply", "-f", &file]);
    let removed = person.warren(&["rm", "-f", &file]);
    let expected = "service web removed\nconfig app removed\nsecret key removed\nvolume data removed; its data \
                    stays until \
                    `warren volume purge`\nnetwork back removed\n";
    assert_eq!((removed.code, removed.stdout.as_str()), (0, expected), "{removed:?}");
    let again = person.warren(&["rm", "-f", &file]);
    assert_eq!((again.code, again.stdout.as_str()), (0, ""), "{again:?}");
    let expected = "service web does not exist\nconfig app does not exist\nsecret key does not \
                    exist\nvolume data does not \
                    exist\nnetwork back does not exist\n";
    assert_eq!(again.stderr, expected);
}

#[test]
fn failed_step_says_what_was_changed_before() {
    let (person, file) = shop();
    person.ok(&["apply", "-f", &file]);
    let contested = SHOP
        .replace("name: web", "name: contested")
        .replace("name: back", "name: front")
        .replace("network: back", "network: front");
    let contested = write(&person, "contested.yaml", &contested);
    person.ok(&["apply", "-f", &contested]);
    let edited =
        std::fs::read_to_string(&contested).unwrap().replace("256Mi", "512Mi").replace("hunter2", "hunter3");
    let edited = write(&person, "edited.yaml", &edited);
    let failed = person.warren(&["apply", "-f", &edited]);
    assert_eq!(failed.code, 4, "{failed:?}");
    assert!(
        failed.stdout.ends_with("secret key updated: version 2\nconfig app is unchanged\n"),
        "{failed:?}"
    );
    assert!(
        failed.stderr.contains("service contested was not applied; changed before it: secret key"),
        "{failed:?}"
    );
}

#[test]
fn inspected_documents_apply_as_unchanged() {
    let (person, file) = shop();
    person.ok(&["apply", "-f", &file]);
    let mut texts = Vec::new();
    for (noun, name) in [
        ("service", "web"),
        ("network", "back"),
        ("volume", "data"),
        ("secret", "key"),
        ("config", "app"),
        ("node", "node-1"),
    ] {
        texts.push(person.ok(&[noun, "inspect", name, "-o", "yaml", "--as-document"]));
        let json = person.ok(&[noun, "inspect", name, "-o", "json", "--as-document"]);
        let file = write(&person, &format!("{noun}.json"), &json);
        let applied = person.ok(&["apply", "-f", &file]);
        assert_eq!(applied, format!("{noun} {name} is unchanged\n"));
    }
    assert!(texts[4].contains("stringData: one") && !texts[3].contains("hunter2"), "{texts:?}");
    let all = write(&person, "all.yaml", &texts.join("---\n"));
    let applied = person.ok(&["apply", "-f", &all]);
    assert!(
        applied.lines().count() == 6 && applied.lines().all(|line| line.ends_with(" is unchanged")),
        "{applied}"
    );
}

#[test]
fn node_gets_labels_taints_and_availability() {
    let person = CliUser::new();
    let node = "apiVersion: warren.io/v1\nkind: Node\nmetadata: {name: node-1, labels: {zone: b}}\nspec: \
                {availability: pause, \
                taints: ['dedicated=gpu:NoSchedule']}\n";
    let file = write(&person, "node.yaml", node);
    let diff = person.warren(&["diff", "-f", &file]);
    assert_eq!(diff.code, 1, "{diff:?}");
    for change in
        ["metadata.labels +zone=b", "spec.availability -> pause", "spec.taints +dedicated=gpu:NoSchedule"]
    {
        assert!(diff.stdout.contains(change), "{diff:?}");
    }
    assert_eq!(person.ok(&["apply", "-f", &file]), "node node-1 updated\n");
    assert_eq!(person.ok(&["apply", "-f", &file]), "node node-1 is unchanged\n");
    let unknown = write(&person, "unknown.yaml", &node.replace("node-1", "node-9"));
    let found = person.fails(4, &["apply", "-f", &unknown]);
    assert!(found.contains("unknown.yaml:3:18: metadata.name: there is no node node-9"), "{found}");
    let removed = person.warren(&["rm", "-f", &file]);
    assert_eq!(removed.stderr, "node node-1 stays; remove it with `warren node rm node-1`\n");
}

#[test]
fn schema_is_printed() {
    let person = CliUser::new();
    let schema: Value = serde_json::from_str(&person.ok(&["schema"])).unwrap();
    assert_eq!(schema["oneOf"].as_array().unwrap().len(), 7);
}
