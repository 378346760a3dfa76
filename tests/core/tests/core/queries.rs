//! References by name and id.

use warren_types::*;

use crate::test_cluster::*;

/// Ids that begin with `1a`, `1b`, `2`.
fn world() -> TestCluster {
    let mut world = TestCluster::new();
    for (id, name) in [("1a", "web"), ("1b", "api"), ("2", "db")] {
        let id: ServiceId = format!("{id:0<25}").parse().unwrap();
        world.accept(warren_core::Command::CreateService { id, spec: spec(name, 2), at: world.now });
        let node = NodeId(id.0);
        let (name, description) =
            (format!("{name}.example").parse().unwrap(), description(resources(4000, 512)));
        world.accept(warren_core::Command::RegisterNode {
            id: node,
            name,
            role: NodeRole::Worker,
            description,
            taints: Default::default(),
            at: world.now,
        });
    }
    world.node(1, resources(4000, 512));
    world.state.services().map(|service| service.id.0.0).collect::<Vec<_>>().into_iter().for_each(|id| {
        world.reconcile(id);
    });
    world
}

#[test]
fn services_are_found_by_name_id_and_prefix() {
    let world = world();
    let find = |text: &str| match world.state.find_service(text) {
        Ok(service) => service.spec.name.to_string(),
        Err(refusal) => refusal.to_string(),
    };
    assert_eq!(find("web"), "web");
    assert_eq!(find("1b"), "api");
    assert_eq!(find("1b00000000000000000000000"), "api");
    assert_eq!(find("2"), "db");
    assert_eq!(
        find("1"),
        "\"1\" is a prefix of more than one service id \
         (1a00000000000000000000000, 1b00000000000000000000000); give a longer prefix"
    );
    for missing in ["", "nope", "zzz", "1A", "3", &"1".repeat(26)] {
        assert!(find(missing).starts_with(&format!("service {missing:?} does not exist")), "{missing}");
    }
}

#[test]
fn name_wins_over_id_prefix() {
    let mut world = world();
    world.service(7, spec("1b", 1));
    assert_eq!(world.state.find_service("1b").unwrap().id, service_id(7));
    assert_eq!(world.state.find_service("1b0").unwrap().spec.name.as_str(), "api");
}

#[test]
fn nodes_are_found_by_name_and_prefix() {
    let world = world();
    assert_eq!(world.state.find_node("db.example").unwrap().id.to_string(), format!("{:0<25}", "2"));
    assert_eq!(world.state.find_node("1a").unwrap().name.as_str(), "web.example");
    let missing = world.state.find_node("db").unwrap_err().to_string();
    assert_eq!(missing, "node \"db\" does not exist; `warren node ls` lists the existing ones");
}

#[test]
fn tasks_are_found_by_slot_and_id() {
    let mut world = world();
    world.schedule();
    let web = world.state.find_service("web").unwrap().id.0.0;
    let find = |world: &TestCluster, text: &str| {
        world.state.find_task(text).map(|task| task.id.number).map_err(|e| e.to_string())
    };
    assert_eq!(find(&world, "web.2"), Ok(2));
    assert_eq!(find(&world, "1a.1"), Ok(1));
    assert_eq!(find(&world, "1a-2"), Ok(2));
    assert_eq!(find(&world, &format!("{}-1", service_id(web))), Ok(1));
    assert!(find(&world, "1-2").unwrap_err().contains("is a prefix of more than one task id (1a00"));
    for missing in ["web.3", "web.x", "web", "web-1", "1a-9", "1a-x", "-1", ""] {
        assert!(find(&world, missing).unwrap_err().starts_with(&format!("task {missing:?} does not exist")));
    }
    assert!(find(&world, "nope.1").unwrap_err().starts_with("service \"nope\" does not exist"));
    world.observe(task_id(web, 2), TaskState::Failed);
    assert_eq!(find(&world, "web.2"), Ok(2), "without a live task, the newest record");
    world.reconcile(web);
    assert_eq!(find(&world, "web.2"), Ok(7 - 4), "the live task");
}

#[test]
fn list_continues_after_key() {
    let world = world();
    let names = |last: Option<&str>| -> Vec<String> {
        let last = last.map(|name| name.parse().unwrap());
        world.state.services_after(last.as_ref()).map(|service| service.spec.name.to_string()).collect()
    };
    assert_eq!(names(None), ["api", "db", "web"]);
    assert_eq!(names(Some("api")), ["db", "web"]);
    assert_eq!(names(Some("c")), ["db", "web"], "the key may be gone");
    let last = "db.example".parse().unwrap();
    let nodes: Vec<_> = world.state.nodes_after(Some(&last)).map(|node| node.name.to_string()).collect();
    assert_eq!(nodes, ["node-1", "web.example"]);
    let all: Vec<_> = world.state.tasks_after(None).map(|task| task.id).collect();
    let rest: Vec<_> = world.state.tasks_after(Some(all[3])).map(|task| task.id).collect();
    assert_eq!((all.len(), &rest[..]), (6, &all[4..]));
}
