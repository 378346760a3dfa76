//! `warren deploy` and `warren stack ...`

use serde_json::{Value, json};

use crate::user::CliUser;

const SHOP: &str = "
services:
  web:
    image: runs
    ports: ['80']
    depends_on: {db: {condition: service_healthy}}
    configs: [app]
    networks: [front, default]
  db:
    image: runs
    volumes: ['data:/d']
    secrets: [key]
networks: {front: {internal: true}}
volumes: {data: }
secrets: {key: {environment: DB_KEY}}
configs: {app: {content: one}}
";

/// The messages about unchanged services. This manager reports none as running, so they are waited for.
const UNCHANGED: &str = "service shop_db is unchanged
service shop_web is unchanged
service shop_db: 1 of 1 ready
service shop_web: 1 of 1 ready
";

fn write(person: &CliUser, name: &str, text: &str) -> String {
    let path = person.path(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn json(person: &CliUser, arguments: &[&str]) -> Value {
    serde_json::from_str(&person.ok(&[arguments, &["-o", "json"]].concat())).unwrap()
}

/// A person with the files of a shop.
fn shop() -> (CliUser, String) {
    let person = CliUser::new();
    write(&person, ".env", "DB_KEY=secret\n");
    let file = write(&person, "compose.yaml", SHOP);
    (person, file)
}

#[test]
fn stack_is_deployed_in_order_and_the_second_time_nothing_changes() {
    let (person, file) = shop();
    let deployed = person.warren(&["deploy", "-c", &file, "shop"]);
    assert_eq!((deployed.code, deployed.stdout.as_str()), (0, "shop\n"), "{deployed:?}");
    let created: Vec<&str> = deployed.stderr.lines().filter(|line| line.ends_with(" created")).collect();
    let expected = [
        "network shop_default created",
        "network shop_front created",
        "volume shop_data created",
        "secret shop_key created",
        "config shop_app created",
        "service shop_db created",
        "service shop_web created",
    ];
    assert_eq!(created, expected);
    let web = json(&person, &["service", "inspect", "shop_web"]);
    assert_eq!(web["spec"]["labels"], json!({"com.docker.stack.namespace": "shop"}));
    let again = person.warren(&["stack", "deploy", "-c", &file, "shop"]);
    assert_eq!((again.code, again.stdout.as_str()), (0, "shop\n"), "{again:?}");
    assert_eq!(again.stderr, UNCHANGED);
    assert_eq!(json(&person, &["service", "inspect", "shop_web"])["version"], web["version"]);

    assert_eq!(
        person.ok(&["stack", "ls", "--format", "{{.Name}} {{.Services}} {{.Networks}}"]),
        "shop 2 2\n"
    );
    let services = person.ok(&["stack", "services", "shop", "--format", "{{.Name}}"]);
    let services: std::collections::BTreeSet<&str> = services.lines().collect();
    assert_eq!(services, ["shop_db", "shop_web"].into());
    assert_eq!(person.ok(&["stack", "ps", "shop", "-q"]).lines().count(), 2);
}

#[test]
fn only_what_differs_is_updated() {
    let (person, file) = shop();
    person.ok(&["deploy", "-c", &file, "shop"]);
    let over = write(&person, "over.yaml", "services: {web: {scale: 2}}\nconfigs: {app: {content: two}}\n");
    let plan = person.ok(&["deploy", "--dry-run", "-c", &file, "-c", &over, "shop"]);
    let lines: Vec<String> =
        plan.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "ACTION KIND NAME",
        "keep secret shop_key",
        "update config shop_app",
        "keep service shop_db",
        "update service shop_web",
        "",
        "TASK CHANGE NODE REASON",
        "shop_web.1 new node-1",
        "shop_web.1 stops node-1",
        "shop_web.2 new node-2",
    ];
    assert_eq!(lines, expected);
    assert_eq!(
        json(&person, &["service", "inspect", "shop_web"])["spec"]["mode"]["replicated"]["replicas"],
        1
    );
    let updated = person.warren(&["deploy", "-c", &file, "-c", &over, "shop"]);
    assert_eq!(updated.code, 0, "{updated:?}");
    assert!(
        updated.stderr.contains("config shop_app updated: version 2\nservice shop_db is unchanged\n"),
        "{updated:?}"
    );
    assert!(!updated.stderr.contains("secret"), "{updated:?}");
    assert_eq!(
        json(&person, &["service", "inspect", "shop_web"])["spec"]["mode"]["replicated"]["replicas"],
        2
    );
}

#[test]
fn dry_run_tells_which_services_are_restarted_after_others() {
    let person = CliUser::new();
    let restarted = "depends_on: {a: {condition: service_started, restart: true}}";
    let text = |image| format!("services:\n  a: {{image: {image}}}\n  b: {{image: runs, {restarted}}}\n");
    let (file, edited) =
        (write(&person, "compose.yaml", &text("runs")), write(&person, "edited.yaml", &text("pending")));
    person.ok(&["deploy", "-c", &file, "x"]);
    for (file, expected) in [(&file, "keep service x_b"), (&edited, "restart service x_b")] {
        let plan = person.ok(&["deploy", "--dry-run", "-c", file, "x"]);
        let lines: Vec<String> =
            plan.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert!(lines.iter().any(|line| line == expected), "{plan}");
        let stops = lines.iter().any(|line| line.starts_with("x_b.1 stops"));
        assert_eq!(stops, expected.starts_with("restart"), "{plan}");
    }
}

#[test]
fn new_data_is_a_new_version_of_a_secret_and_is_not_printed() {
    let (person, file) = shop();
    person.ok(&["deploy", "-c", &file, "shop"]);
    write(&person, ".env", "DB_KEY=another\n");
    let updated = person.warren(&["deploy", "-c", &file, "shop"]);
    assert_eq!(updated.code, 0, "{updated:?}");
    assert_eq!(updated.stderr, format!("secret shop_key updated: version 2\n{UNCHANGED}"));
    assert!(!updated.stderr.contains("another"), "{updated:?}");
}

#[test]
fn services_that_are_no_longer_in_the_files_are_removed_with_prune() {
    let (person, file) = shop();
    person.ok(&["service", "create", "other", "--image=runs"]);
    person.ok(&["deploy", "-c", &file, "shop"]);
    let less = write(&person, "less.yaml", "services: {db: {image: runs}}");
    person.ok(&["deploy", "-c", &less, "shop"]);
    assert_eq!(person.ok(&["stack", "services", "shop", "-q"]).lines().count(), 2);
    person.ok(&["deploy", "-c", &less, "--prune", "shop"]);
    let services = person.ok(&["service", "ls", "--format", "{{.Name}}"]);
    let services: std::collections::BTreeSet<&str> = services.lines().collect();
    assert_eq!(services, ["other", "shop_db"].into());
}

#[test]
fn removal_removes_what_the_stack_made_and_nothing_else() {
    let (person, file) = shop();
    person.ok(&["service", "create", "other", "--image=runs"]);
    person.ok(&["network", "create", "kept"]);
    person.ok(&["deploy", "-c", &file, "shop"]);
    person.ok(&["deploy", "-c", &file, "second"]);
    let removed = person.warren(&["stack", "rm", "shop"]);
    assert_eq!((removed.code, removed.stdout.as_str()), (0, "shop\n"), "{removed:?}");
    assert!(removed.stderr.contains("the volumes shop_data remain; --volumes removes them"), "{removed:?}");
    assert_eq!(person.ok(&["service", "ls", "-q", "--filter=label=com.docker.stack.namespace=shop"]), "");
    let networks = person.ok(&["network", "ls", "--format", "{{.Name}}"]);
    assert_eq!(networks, "default\nkept\nsecond_default\nsecond_front\n");
    assert_eq!(person.ok(&["secret", "ls", "--format", "{{.Name}}"]), "second_key\n");
    assert_eq!(person.ok(&["volume", "ls", "-q"]), "second_data\nshop_data\n");
    person.ok(&["stack", "rm", "shop", "--volumes"]);
    assert_eq!(person.ok(&["volume", "ls", "-q"]), "second_data\n");
    let gone = person.fails(3, &["stack", "rm", "shop"]);
    assert!(gone.contains("there is no stack shop"), "{gone}");
}

#[test]
fn foreign_and_missing_objects_are_conflicts_before_anything_is_changed() {
    let (person, file) = shop();
    person.ok(&["network", "create", "shop_front"]);
    let found = person.fails(4, &["deploy", "-c", &file, "shop"]);
    assert!(
        found.contains("network shop_front exists and is of no stack; remove it, give another `name`"),
        "{found}"
    );
    assert_eq!(person.ok(&["stack", "ls", "-q"]), "");
    let text = "services: {a: {image: runs, networks: [n]}}\nnetworks:\n  n: {external: true}\n";
    let file = write(&person, "external.yaml", text);
    let found = person.fails(4, &["deploy", "-c", &file, "shop"]);
    assert!(found.contains("external.yaml:3:6: networks.n: there is no network n in the cluster"), "{found}");
    person.ok(&["network", "create", "n"]);
    person.ok(&["deploy", "-c", &file, "shop"]);
    person.ok(&["stack", "rm", "shop"]);
    assert!(person.ok(&["network", "ls", "-q"]).lines().any(|name| name == "n"));
}

#[test]
fn port_of_another_service_is_a_conflict_before_anything_is_changed() {
    let person = CliUser::new();
    let file = |name: &str, ports: [&str; 2]| {
        let [a, b] = ports;
        let text = format!("services:\n  a: {{image: runs{a}}}\n  b: {{image: runs{b}}}\n");
        write(&person, name, &text)
    };
    let port = ", ports: ['8080:80']";
    let first = file("first.yaml", [port, ""]);
    person.ok(&["deploy", "-c", &first, "one"]);
    let found = person.fails(4, &["deploy", "-c", &first, "two"]);
    let expected =
        "first.yaml:2:28: services.a.ports[0]: host port 8080 is published by service one_a; give another";
    assert!(found.contains(expected), "{found}");
    assert_eq!(person.ok(&["stack", "ls", "-q"]), "one\n");
    // The services are changed one after the other: a port may go to one that is changed later.
    let second = file("second.yaml", ["", port]);
    person.ok(&["deploy", "-c", &second, "one"]);
    let found = person.fails(4, &["deploy", "-c", &first, "one"]);
    assert!(found.contains("host port 8080 is published by service one_b"), "{found}");
    // A service that is removed anyway is removed first.
    let renamed = write(&person, "renamed.yaml", "services:\n  c: {image: runs, ports: ['8080:80']}\n");
    person.fails(4, &["deploy", "-c", &renamed, "one"]);
    let ran = person.warren(&["deploy", "-c", &renamed, "--prune", "one"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.starts_with("service one_b removed\n"), "{ran:?}");
    assert!(ran.stderr.contains("service one_c created\nservice one_a removed\n"), "{ran:?}");
    assert_eq!(person.ok(&["stack", "services", "one", "--format", "{{.Name}}"]), "one_c\n");
}

#[test]
fn images_and_paths_of_this_machine_need_what_is_named() {
    let person = CliUser::new();
    let file = write(&person, "built.yaml", "services:\n  a: {build: .}\n  b: {build: ., image: 'runs:1'}\n");
    let found = person.fails(2, &["deploy", "-c", &file, "x"]);
    let expected =
        "built.yaml:2:14: services.a.build: the image is not built yet: give --build to build it here";
    assert!(found.contains(expected), "{found}");
    let expected =
        "built.yaml:3:14: services.b.build: is not built without --build: the image runs:1 is used as it is";
    assert!(found.contains(expected), "{found}");
    // There is no builder in the path.
    let found = person.fails(1, &["deploy", "--build", "-c", &file, "x"]);
    assert!(found.contains("neither docker nor buildah is installed here"), "{found}");
    let plan = person.ok(&["deploy", "--build", "--dry-run", "-c", &file, "x"]);
    assert!(plan.contains("build    image     localhost/x_a:latest"), "{plan}");
    person.ok(&["stack", "config", "-c", &file]);

    let file = write(&person, "local.yaml", "services:\n  a: {image: runs, volumes: ['./x:/x']}\n");
    let found = person.fails(2, &["deploy", "-c", &file, "x"]);
    assert!(found.contains("local.yaml:2:30: services.a.volumes[0]: "), "{found}");
    assert!(found.contains("/x is a path of this machine, on which no node of the cluster runs;"), "{found}");
    assert!(!person.path("x").exists());
    assert_eq!(person.ok(&["stack", "ls", "-q"]), "");
}

#[test]
fn files_are_checked_and_printed_without_a_cluster() {
    let (person, file) = shop();
    let shown = person.warren(&["stack", "config", "-c", &file, "-o", "json"]);
    let model: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(model["services"]["web"]["ports"], json!([{"target": 80, "protocol": "tcp"}]));
    let wrong =
        write(&person, "wrong.yaml", "services:\n  web:\n    image: a\n    prots: []\n    gpus: all\n");
    let found = person.fails(2, &["stack", "config", "-c", &wrong]);
    assert!(found.contains("wrong.yaml:4:5: services.web: \"prots\" is not a key"), "{found}");
    assert!(found.contains("wrong.yaml:5:5: services.web.gpus: is not supported by this version"), "{found}");
    let unset =
        write(&person, "unset.yaml", "services: {a: {image: x}}\nsecrets: {k: {environment: UNSET}}\n");
    let found = person.fails(2, &["deploy", "-c", &unset, "x"]);
    assert!(found.contains("unset.yaml:2:14: secrets.k: the variable UNSET is not set"), "{found}");
    person.fails(2, &["stack", "config", "-c", person.path("none.yaml").to_str().unwrap()]);
}

#[test]
fn bootstrap_service_of_a_stack_is_removed_only_with_force() {
    let person = CliUser::new();
    let dns = "dns: {image: runs, deploy: {mode: global}}";
    let file = write(&person, "compose.yaml", &format!("services: {{{dns}, web: {{image: runs}}}}\n"));
    person.ok(&["deploy", "-c", &file, "infra"]);
    person.ok(&["service", "update", "--bootstrap", "--detach", "infra_dns"]);
    let listed = person.ok(&["service", "ls", "--format", "{{.Mode}}", "--filter", "name=infra_dns"]);
    assert_eq!(listed, "global (bootstrap)\n");
    let again = person.warren(&["deploy", "-c", &file, "infra"]);
    assert!(again.stderr.contains("service infra_dns is unchanged"), "{again:?}");
    let less = write(&person, "less.yaml", "services: {web: {image: runs}}\n");
    let pruned = person.warren(&["deploy", "--prune", "-c", &less, "infra"]);
    let warning = "warning: service infra_dns is a bootstrap service and stays; remove it with `warren service rm \
                   --force infra_dns`";
    assert!(pruned.code == 0 && pruned.stderr.contains(warning), "{pruned:?}");
    let refused = person.warren(&["stack", "rm", "infra"]);
    assert!(refused.stderr.contains("service infra_dns is a bootstrap service"), "{refused:?}");
    assert_ne!(refused.code, 0, "{refused:?}");
    assert_eq!(json(&person, &["service", "ls"]).as_array().unwrap().len(), 2, "nothing was removed");
    person.ok(&["stack", "rm", "--force", "infra"]);
    assert_eq!(json(&person, &["service", "ls"]), json!([]));
}
