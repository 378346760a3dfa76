//! `warren network ...`, and the networks of a service.

use serde_json::{Value, json};

use crate::user::CliUser;

fn json(person: &CliUser, arguments: &[&str]) -> Value {
    serde_json::from_str(&person.ok(&[arguments, &["-o", "json"]].concat())).unwrap()
}

#[test]
fn network_is_created_listed_with_its_services_and_removed() {
    let person = CliUser::new();
    let created = person.warren(&["network", "create", "back", "--internal", "--label=team=a"]);
    let texts = (created.code, created.stdout.as_str(), created.stderr.as_str());
    assert_eq!(texts, (0, "back\n", "network back created\n"));
    let shown = json(&person, &["network", "create", "front"]);
    assert_eq!((&shown["name"], &shown["internal"]), (&json!("front"), &json!(false)));
    let again = person.fails(4, &["network", "create", "back"]);
    assert!(again.contains("why: network back already exists"), "{again}");

    person.ok(&["service", "create", "db", "--image=runs", "--network=back,alias=sql"]);
    person.ok(&["service", "create", "web", "--image=runs"]);
    let shown = json(&person, &["network", "inspect", "back"]);
    assert_eq!((&shown["internal"], &shown["labels"]), (&json!(true), &json!({"team": "a"})));
    assert_eq!(shown["services"], json!(["db"]));
    let format = ["network", "ls", "--format", "{{.Name}} {{.Services}}"];
    assert_eq!(person.ok(&format), "back db\ndefault web\nfront \n");
    assert_eq!(person.ok(&["network", "ls", "-q", "--filter=internal=true"]), "back\n");
    assert_eq!(person.ok(&["network", "list", "-q", "--filter=service=web"]), "default\n");
    assert_eq!(person.ok(&["network", "ls", "-q", "--filter=label=team=a"]), "back\n");

    let used = person.fails(4, &["network", "rm", "back"]);
    let end = "why: network back is used by db\n  \
               try: disconnect it first: `warren service update SERVICE --network-rm back`\n";
    assert!(used.ends_with(end), "{used}");
    person.ok(&["service", "update", "db", "--network-add=front", "--network-rm=back"]);
    let removed = person.warren(&["network", "rm", "back"]);
    assert_eq!((removed.stdout.as_str(), removed.stderr.as_str()), ("back\n", "network back was removed\n"));
    person.fails(3, &["network", "inspect", "back"]);
    person.fails(3, &["network", "rm", "back"]);
    let default = person.fails(4, &["network", "remove", "default"]);
    assert!(default.contains("the network default always exists"), "{default}");
}

#[test]
fn wrong_network_is_refused() {
    let person = CliUser::new();
    let name = person.fails(2, &["network", "create", "Front"]);
    assert!(name.contains("\"Front\" is not a network name"), "{name}");
    let label = person.fails(2, &["network", "create", "front", "--label=a=1", "--label=a=2"]);
    assert!(label.contains("labels[\"a\"]: is given twice"), "{label}");
    person.fails(2, &["network", "create"]);
    person.fails(2, &["network", "rm"]);
    let create =
        |more: &[&str]| person.fails(2, &[&["service", "create", "a", "--image=runs"], more].concat());
    let both = create(&["--network=host", "--network=front"]);
    assert!(both.contains("spec.task.network: host cannot be combined with other networks"), "{both}");
    let alias = create(&["--network=none", "--alias=b"]);
    assert!(
        alias.contains("a task without an address of its own has no names; leave out --alias"),
        "{alias}"
    );
    let port = create(&["--network=host", "-p80:80"]);
    assert!(port.contains("spec.ports: only a task with an address of its own can publish ports"), "{port}");
    assert!(create(&["--endpoint-mode=dns"]).contains("dns"));
}

#[test]
fn last_network_is_not_removed_from_a_service() {
    let person = CliUser::new();
    person.ok(&["service", "create", "web", "--image=runs"]);
    let output = person.fails(2, &["service", "update", "web", "--network-rm=default"]);
    assert!(
        output.contains("spec.task.network.networks: is empty; give a network, host or none"),
        "{output}"
    );
    person.ok(&["service", "update", "web", "--network-add=host"]);
    assert_eq!(json(&person, &["service", "inspect", "web"])["spec"]["task"]["network"], json!("host"));
    person.ok(&["service", "update", "web", "--network-add=default"]);
    assert_eq!(json(&person, &["service", "inspect", "web"])["spec"]["task"]["network"], Value::Null);
}

#[test]
fn ports_that_lead_only_to_own_tasks_are_named() {
    let person = CliUser::new();
    let create = |name: &str, port: &str| {
        person.warren(&["service", "create", name, "--image=runs", "--publish", port]).stderr
    };
    assert!(!create("a", "80:80").contains("warning"), "there is a tunnel");
    person.ok(&["cluster", "update", "--data-plane=routes"]);
    assert!(!create("b", "81:80,mode=host").contains("warning"));
    let warning = |ports: &str, name: &str| {
        format!(
            "warning: with the data plane routes, a node leads {ports} only to tasks of {name} on the node itself, \
             and refuses connections while it has none\n"
        )
    };
    let created = create("c", "82:80");
    assert!(created.contains(&warning("82->80/tcp", "c")), "{created}");
    let update = |more: &[&str]| person.warren(&[&["service", "update", "c"], more].concat()).stderr;
    assert!(!update(&["--image=runs:2"]).contains("warning"));
    let updated = update(&["--publish-add=83:80/udp"]);
    assert!(updated.contains(&warning("82->80/tcp, 83->80/udp", "c")), "{updated}");
}

#[test]
fn nodes_that_open_ports_are_selected_like_those_for_tasks() {
    let person = CliUser::new();
    let create =
        |more: &[&str]| person.fails(2, &[&["service", "create", "a", "--image=runs"], more].concat());
    let tests = ["--publish-on=node.labels.edge == true"];
    for more in [&tests[..], &[tests[0], "--publish=80:80,mode=host"]] {
        let refused = create(more);
        assert!(
            refused.contains("spec.publishOn: selects the nodes that open ports of mode=ingress"),
            "{refused}"
        );
    }
    let malformed = create(&["--publish=80:80", "--publish-on=edge"]);
    assert!(malformed.contains("\"edge\" is not a constraint: expected KEY == VALUE"), "{malformed}");

    person.ok(&["service", "create", "web", "--image=runs", "--publish=80:80", tests[0]]);
    let selected = || json(&person, &["service", "inspect", "web"])["spec"]["publishOn"].clone();
    assert_eq!(selected(), json!(["node.labels.edge == true"]));
    person.ok(&["service", "update", "web", "--publish-on-add=node.name != n3"]);
    assert_eq!(selected(), json!(["node.labels.edge == true", "node.name != n3"]));
    let left = person.fails(2, &["service", "update", "web", "--publish-rm=80"]);
    assert!(left.contains("spec.publishOn"), "{left}");
    let both = ["--publish-on-rm=node.labels.edge==true", "--publish-on-rm=node.name != n3"];
    person.ok(&[&["service", "update", "web"], &both[..]].concat());
    assert_eq!(selected(), Value::Null);
}
