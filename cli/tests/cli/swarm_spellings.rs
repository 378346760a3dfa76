//! Command lines of Docker Swarm mean the same here.

use serde_json::{Value, json};

use crate::user::CliUser;

fn inspect(person: &CliUser, service: &str) -> Value {
    serde_json::from_str(&person.ok(&["service", "inspect", service, "-o", "json"])).unwrap()
}

/// A line that is split at blanks.
fn ok(person: &CliUser, line: &str) -> String {
    person.ok(&line.split(' ').collect::<Vec<_>>())
}

#[test]
fn swarm_flags_of_create_are_the_flags_of_warren() {
    let person = CliUser::new();
    ok(
        &person,
        "service create swarm --image runs --limit-cpu 0.5 --limit-memory 64M --limit-pids 9 --reserve-cpu 0.25 \
         --reserve-memory 32M --stop-grace-period 20s --restart-condition on-failure --restart-max-attempts 2 \
         --replicas-max-per-node 3 -u 33 -w /srv -t -l a=b -e A=1 -p published=8080,target=80 \
         --mount type=volume,source=data,target=/data --mount type=bind,src=/srv,dst=/srv,ro \
         --config source=app,target=app.conf --no-healthcheck -q",
    );
    ok(
        &person,
        "service create warren --image runs --cpus 0.5 --memory 64M --pids 9 --reserve-cpus 0.25 \
         --reserve-memory 32M --stop-grace 20s --restart on-failure --restart-max 2 --max-per-node 3 --user 33 \
         --workdir /srv --tty --label a=b --env A=1 --publish 8081:80 --volume data:/data --bind /srv:/srv:ro \
         --config app:/app.conf",
    );
    let [mut swarm, mut warren] = ["swarm", "warren"].map(|name| inspect(&person, name)["spec"].take());
    for spec in [&mut swarm, &mut warren] {
        spec["name"].take();
        spec["ports"].take();
    }
    assert_eq!(swarm, warren);
    assert_eq!(swarm["task"]["user"], "33");
}

#[test]
fn update_accepts_the_names_of_create_as_add_or_replace() {
    let person = CliUser::new();
    ok(
        &person,
        "service create web --image runs --env A=1 --env B=1 --label a=1 --publish 8080:80 \
         --constraint node.labels.zone==a --constraint node.name!=x",
    );
    ok(
        &person,
        "service update web --env A=2 -e C=3 --label a=2 --publish 8080:81 --publish 9090:90 \
         --constraint node.labels.zone==b --constraint node.name!=y --mount source=data,target=/data -q",
    );
    let spec = inspect(&person, "web")["spec"].take();
    let env = json!([{"name": "A", "value": "2"}, {"name": "B", "value": "1"}, {"name": "C", "value": "3"}]);
    assert_eq!(spec["task"]["env"], env);
    assert_eq!(spec["labels"], json!({"a": "2"}));
    let ports: Vec<(&Value, &Value)> = spec["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| (&port["hostPort"], &port["containerPort"]))
        .collect();
    assert_eq!(ports, [(&json!(8080), &json!(81)), (&json!(9090), &json!(90))]);
    let constraints = json!(["node.labels.zone == b", "node.name != x", "node.name != y"]);
    assert_eq!(spec["placement"]["constraints"], constraints);
    assert_eq!(spec["task"]["mounts"][0]["target"], "/data");
}

#[test]
fn quiet_create_prints_only_the_id() {
    let person = CliUser::new();
    let ran = person.warren(&["service", "create", "shop_web", "--image", "runs", "-q"]);
    assert_eq!((ran.code, ran.stderr.as_str(), ran.stdout.lines().count()), (0, "", 1));
    let ran = person.warren(&["service", "update", "shop_web", "--env", "A=1", "--quiet"]);
    assert_eq!((ran.code, ran.stderr.as_str(), ran.stdout.lines().count()), (0, "", 1));
}

#[test]
fn lists_are_selected_and_formatted() {
    let person = CliUser::new();
    ok(&person, "service create web --image runs --label tier=front --replicas 2");
    ok(&person, "service create web-2 --image runs --label tier=back");
    ok(&person, "service create db --image runs --mode global");
    // The manager of these tests lists services in the order of their ids.
    let ls = |flags: &str| {
        let listed = ok(&person, &format!("service list {flags}"));
        let mut lines: Vec<String> = listed.lines().map(|line| format!("{line}\n")).collect();
        lines.sort();
        lines.concat()
    };
    assert_eq!(ls("--format {{.Name}}={{.Mode}}"), "db=global\nweb-2=replicated\nweb=replicated\n");
    assert_eq!(ls("-f name=web --format {{.Name}}"), "web\nweb-2\n");
    assert_eq!(ls("--filter label=tier=back --format {{.Name}}"), "web-2\n");
    assert_eq!(ls("--filter label=tier --filter mode=replicated --format {{.Name}}"), "web\nweb-2\n");
    let id = ls("-q -f name=db").trim().to_owned();
    assert_eq!(inspect(&person, &id)["name"], "db");
    assert!(ls("--no-trunc").contains(&id) && !ls("-f name=db").contains(&id));
    let line: Value = serde_json::from_str(&ls("-f name=db --format json")).unwrap();
    assert_eq!(line["id"], id.as_str());
    let table = person.ok(&["service", "ls", "-f", "name=db", "--format", r"table {{.Name}}\t{{.Mode}}"]);
    assert_eq!(table, "NAME   MODE\ndb     global\n");
    assert_eq!(
        ok(&person, "service ps web --filter name=web.2 --format {{.Name}}:{{.CurrentState}}"),
        "web.2:RUNNING\n"
    );
    assert_eq!(ok(&person, "service ps web -f name=web.1 --format {{.Name}}={{.Image}}"), "web.1=runs\n");
    assert_eq!(ok(&person, "task ls -f name=web-2.1 --format {{.Image}}"), "runs\n");
    let node = ok(&person, "service ps web --filter name=web.1 --format {{.Node}}");
    let node = ok(&person, &format!("node ls -q --filter name={}", node.trim())).trim().to_owned();
    // The manager of these tests knows services and nodes by their ids only.
    let web = inspect(&person, "web")["id"].as_str().unwrap().to_owned();
    let tasks =
        ok(&person, &format!("task ls --filter service={web} --filter node={node} --format {{{{.Name}}}}"));
    assert!(tasks.contains("web.1\n") && !tasks.contains("db"), "{tasks}");
    assert_eq!(ok(&person, "node ls --filter name=node --format {{.Hostname}}"), "node-1\nnode-2\n");
    for list in ["token ls", "secret ls", "config ls", "volume ls", "network ls", "registry ls", "manager ls"]
    {
        ok(&person, &format!("{list} -q --no-trunc"));
        ok(&person, &format!("{list} --format json"));
    }
    let text = person.fails(2, &["service", "ls", "--format", "{{.Nme}}"]);
    assert!(text.contains("{{.Nme}} is not a field of this list") && text.contains(".Name, .Mode"), "{text}");
    let text = person.fails(2, &["service", "ls", "-q", "-o", "json"]);
    assert!(text.contains("give one of them"), "{text}");
}

#[test]
fn swarm_commands_have_their_names() {
    let person = CliUser::new();
    ok(&person, "service create web --image runs");
    assert!(ok(&person, "service inspect web --pretty").contains("name: web\n"));
    ok(&person, "node inspect node-1 --pretty");
    person.fails(2, &["service", "inspect", "web", "--pretty", "-o", "json"]);
    ok(&person, "service remove web");
    let text = person.fails(4, &["node", "promote", "node-1"]);
    assert!(text.contains("node node-1 is a worker") && text.contains("`warren manager join`"), "{text}");
    person.fails(3, &["node", "demote", "nobody"]);
}

#[test]
fn commands_of_other_tools_get_the_warren_command() {
    let person = CliUser::new();
    for (line, hint) in [
        ("compose up", "warren deploy -c compose.yaml STACK"),
        ("swarm leave", "warren manager init"),
        ("run -it nginx sh", "warren run --detach --name NAME IMAGE"),
        ("service create web nginx:1.27", "service create NAME --image IMAGE"),
    ] {
        let text = person.fails(2, &line.split(' ').collect::<Vec<_>>());
        assert!(text.contains(hint) && !text.contains("similar"), "{text}");
    }
}

#[test]
fn commands_of_docker_are_run() {
    let person = CliUser::new();
    ok(&person, "service create --name web --env A=1 runs -g x");
    ok(&person, "run -dp 8080:80 --name db -v data:/data runs -- -v");
    let [web, db] = ["web", "db"].map(|name| inspect(&person, name)["spec"]["task"].take());
    assert_eq!((&web["image"], &web["args"]), (&json!("runs"), &json!(["-g", "x"])));
    assert_eq!((&db["args"], &db["restart"]["condition"]), (&json!(["-v"]), &json!("none")));
    assert_eq!(db["mounts"][0]["target"], "/data");
    let tasks = ok(&person, "ps -a --format {{.Name}}");
    assert!(tasks.contains("web.1\n") && tasks.contains("db.1\n"), "{tasks}");
    assert!(ok(&person, "exec --help").contains("Usage: warren task exec"));
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let person = CliUser::new();
    let ran = person.warren(&["service", "inspect", "\u{1b}[2J\u{7}web"]);
    assert_eq!(ran.code, 3);
    assert!(!ran.stderr.contains(['\u{1b}', '\u{7}']), "{:?}", ran.stderr);
}
