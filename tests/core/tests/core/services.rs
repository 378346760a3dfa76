//! Commands on the cluster and on services.

use warren_core::{ApplyOutcome, Command, CommandResponse, FEATURE_LEVEL, State, StateChange};
use warren_types::*;

use crate::test_cluster::*;

#[test]
fn a_cluster_is_created_once() {
    let mut world = TestCluster::new();
    let create = |id, range: &str| Command::CreateCluster {
        id: ClusterId(Id(id)),
        ranges: vec![range.parse().unwrap()],
        feature_level: FEATURE_LEVEL,
        at: Timestamp(1),
    };
    assert_eq!(
        world.apply(&create(9, "10.0.0.0/8")),
        ApplyOutcome::Unchanged { answer: CommandResponse::Done }
    );
    assert!(world.refuse(create(8, "10.0.0.0/8")).starts_with("this manager belongs to cluster 0"));

    let mut world =
        TestCluster { state: State::new(), now: Timestamp(1), changes: Vec::new(), events: Vec::new() };
    assert_eq!(
        world.refuse(create(9, "10.0.0.7/8")),
        "ranges[0]: 10.0.0.7/8 has host bits; the range is 10.0.0.0/8"
    );
    let service = Command::CreateService { id: service_id(1), spec: spec("web", 1), at: Timestamp(1) };
    assert!(world.refuse(service).starts_with("there is no cluster yet"));
}

#[test]
fn a_repeated_create_gets_the_same_answer() {
    let mut world = TestCluster::new();
    let create = Command::CreateService { id: service_id(1), spec: spec("web", 2), at: world.now };
    let ApplyOutcome::Applied { response: answer, changes } = world.apply(&create) else {
        panic!("it is new")
    };
    assert_eq!((&answer, changes), (&world.service_answer(1, 2), vec![StateChange::Service(service_id(1))]));
    assert_eq!(world.apply(&create), ApplyOutcome::Unchanged { answer });
}

#[test]
fn repeated_create_of_changed_service_is_refused() {
    let mut world = TestCluster::new();
    let create = Command::CreateService { id: service_id(1), spec: spec("web", 2), at: world.now };
    world.accept(create.clone());
    let scale = |world: &TestCluster, replicas| {
        let (id, version, at) = (service_id(1), None, world.now);
        Command::ScaleService { id, version, replicas, at }
    };
    let changed = |version: u64| {
        format!(
            "an earlier request with this id created service web, which was changed since (it is at \
             version {version}): this request changes nothing; see its current state with `warren service inspect web`"
        )
    };
    world.accept(scale(&world, 3));
    assert_eq!(world.refuse(create.clone()), changed(3));
    world.accept(scale(&world, 2));
    assert_eq!(world.refuse(create.clone()), changed(5), "the spec is the same again, the version is theirs");
    let mut image = spec("web", 2);
    image.task.image = "demo:2".parse().unwrap();
    world.update(1, image);
    world.update(1, spec("web", 2));
    assert_eq!(world.refuse(create.clone()), changed(8));
    world.remove(1);
    assert!(world.refuse(create).starts_with("service web is being removed"));
}

#[test]
fn an_answer_has_the_object_as_of_its_entry() {
    let mut world = TestCluster::with_nodes(1);
    let created = world.service(1, spec("web", 2));
    let before = world.state.service(&service_id(1)).unwrap().clone();
    world.settle();
    let scale = Command::ScaleService { id: service_id(1), version: None, replicas: 3, at: world.now };
    let scaled = world.accept(scale);
    assert_eq!(
        created,
        CommandResponse::Service(before),
        "neither planners nor people change what was answered"
    );
    assert_eq!(scaled, CommandResponse::Service(world.state.service(&service_id(1)).unwrap().clone()));
}

#[test]
fn name_id_and_port_are_unique() {
    let mut world = TestCluster::new();
    world.service(1, publishing("web", 2, 8080));
    let create = |id, spec| Command::CreateService { id: service_id(id), spec, at: Timestamp(0) };
    let taken = "service web already exists; choose another name or remove it first";
    assert_eq!(world.refuse(create(1, spec("other", 2))), taken);
    assert_eq!(world.refuse(create(2, spec("web", 2))), taken);
    let port = "host port 8080 is already published by service web; a port belongs to one service on all nodes, choose \
                another one";
    assert_eq!(world.refuse(create(2, publishing("api", 1, 8080))), port);
    world.service(2, publishing("api", 1, 8081));
}

#[test]
fn same_port_on_two_addresses_is_allowed() {
    let mut world = TestCluster::new();
    let on = |name: &str, ip: Option<[u8; 4]>| {
        let mut spec = publishing(name, 1, 80);
        spec.ports[0].host_ip = ip.map(Into::into);
        spec
    };
    world.service(1, on("one", Some([10, 0, 0, 1])));
    world.service(2, on("two", Some([10, 0, 0, 2])));
    let create = |spec| Command::CreateService { id: service_id(3), spec, at: Timestamp(0) };
    assert!(
        world.refuse(create(on("any", None))).starts_with("host port 80 is already published by service")
    );
    assert!(world.refuse(create(on("same", Some([10, 0, 0, 2])))).contains("two"));
}

#[test]
fn invalid_spec_is_refused_on_apply() {
    let mut world = TestCluster::new();
    let mut wrong = spec("web", 1);
    wrong.task.limits.memory = Some(Bytes(1 << 20));
    let refusal = world.refuse(Command::CreateService { id: service_id(1), spec: wrong, at: world.now });
    assert_eq!(refusal, "spec.task.limits.memory: 1MiB is below the runtime's minimum of 6MiB");
}

#[test]
fn scaling_compares_versions_and_can_be_repeated() {
    let mut world = TestCluster::new();
    world.service(1, spec("web", 2));
    let scale =
        |version, replicas| Command::ScaleService { id: service_id(1), version, replicas, at: Timestamp(0) };
    let answer = world.accept(scale(Some(2), 5));
    assert_eq!(answer, world.service_answer(1, 3));
    assert!(matches!(world.apply(&scale(Some(2), 5)), ApplyOutcome::Unchanged { .. }));
    let conflict = "service web is at version 3, not 2: it changed meanwhile; read it again and retry";
    assert_eq!(world.refuse(scale(Some(2), 6)), conflict);
    assert_eq!(world.refuse(scale(None, 2_000_000)), "replicas: 2000000 is more than 1000000");
    let service = world.state.service(&service_id(1)).unwrap();
    assert_eq!((service.spec.replicas(), service.revision.number), (Some(5), 1));
    let missing = Command::ScaleService { id: service_id(7), version: None, replicas: 1, at: Timestamp(0) };
    assert!(world.refuse(missing).ends_with("does not exist; `warren service ls` lists the existing ones"));
}

#[test]
fn removing_service_refuses_changes() {
    let mut world = TestCluster::new();
    world.service(1, publishing("web", 2, 8080));
    world.remove(1);
    let again = Command::RemoveService { id: service_id(1), version: Some(1), force: false, at: world.now };
    let answer = CommandResponse::Service(world.state.service(&service_id(1)).unwrap().clone());
    assert_eq!(world.apply(&again), ApplyOutcome::Unchanged { answer });
    let leaving = "service web is being removed; wait until it is removed";
    let scale = Command::ScaleService { id: service_id(1), version: None, replicas: 3, at: world.now };
    assert_eq!(world.refuse(scale), leaving);
    let create = |id| Command::CreateService {
        id: service_id(id),
        spec: publishing("web", 2, 8080),
        at: Timestamp(0),
    };
    assert_eq!(world.refuse(create(1)), leaving);
    assert!(world.refuse(create(2)).contains("already exists"));

    let delete = Command::DeleteService { term: TERM, id: service_id(1) };
    world.accept(delete.clone());
    assert_eq!(world.apply(&delete), ApplyOutcome::Unchanged { answer: CommandResponse::Done });
    world.accept(create(2));
}

#[test]
fn a_service_with_tasks_cannot_be_forgotten() {
    let mut world = TestCluster::with_nodes(1);
    world.service(1, spec("web", 1));
    let delete = Command::DeleteService { term: TERM, id: service_id(1) };
    assert!(world.refuse(delete.clone()).contains("is not being removed"));
    world.settle();
    world.remove(1);
    assert!(world.refuse(delete).starts_with("service web still has 1 task records"));
}

#[test]
fn clock_and_index_never_go_back() {
    let mut world = TestCluster::new();
    world.service(1, spec("web", 1));
    let late = Command::CreateService { id: service_id(2), spec: spec("api", 1), at: Timestamp(5) };
    world.accept(late.clone());
    assert_eq!(world.state.service(&service_id(2)).unwrap().created_at, world.now);
    assert_eq!(world.state.clock(), world.now);
    let index = world.state.applied().index;
    match world.state.apply(TERM, index, &late) {
        ApplyOutcome::Rejected(refusal) => {
            assert!(refusal.to_string().contains("is not newer than the applied"))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn plans_of_another_term_are_refused() {
    let mut world = TestCluster::with_nodes(1);
    world.service(1, spec("web", 1));
    for term in [TERM - 1, TERM + 1] {
        let service = service_id(1);
        let plans = [
            Command::CreateTasks { term, service, revision: 1, slots: vec![], at: world.now },
            Command::AssignTasks { term, placements: vec![], at: world.now },
            Command::SetDesiredTaskState {
                term,
                tasks: vec![],
                desired: DesiredTaskState::Remove,
                at: world.now,
            },
            Command::DeleteTasks { term, tasks: vec![] },
            Command::DeleteService { term, id: service },
            Command::SetNodeStatus {
                term,
                node: node_id(1),
                session: 1,
                status: NodeStatus::Down,
                at: world.now,
            },
        ];
        for plan in plans {
            assert_eq!(
                world.refuse(plan),
                format!("the plan is of term {term}, the entry of term {TERM}; plan again")
            );
        }
    }
}

/// The published ports of a service as text.
fn ports(cluster: &TestCluster, number: u128) -> Vec<String> {
    let service = cluster.state.service(&service_id(number)).unwrap();
    service.spec.ports.iter().map(ToString::to_string).collect()
}

#[test]
fn automatic_host_port_is_chosen_and_kept() {
    let mut cluster = TestCluster::with_nodes(1);
    let automatic = |name: &str, ports: &[(u16, Protocol)]| {
        let mut spec = spec(name, 1);
        let port = |&(container_port, protocol)| PublishedPort {
            host_ip: None,
            host_port: 0,
            container_port,
            protocol,
            mode: PublishMode::Host,
            prefer_local: false,
            client_affinity: false,
        };
        spec.ports = ports.iter().map(port).collect();
        spec
    };
    cluster.service(1, publishing("first", 1, 30_000));
    let web = automatic("web", &[(80, Protocol::Tcp), (443, Protocol::Tcp), (53, Protocol::Udp)]);
    cluster.service(2, web.clone());
    assert_eq!(ports(&cluster, 2), ["30001->80/tcp", "30002->443/tcp", "30000->53/udp"]);
    let revision = &cluster.state.service(&service_id(2)).unwrap().revision;
    assert_eq!(revision.ports[0].host_port, 30_001);
    let again =
        cluster.apply(&Command::CreateService { id: service_id(2), spec: web.clone(), at: cluster.now });
    assert!(matches!(again, ApplyOutcome::Unchanged { .. }), "{again:?}");
    // The same request keeps the ports, also beside others.
    let before = cluster.state.service(&service_id(2)).unwrap().clone();
    cluster.update(2, web);
    assert_eq!(*cluster.state.service(&service_id(2)).unwrap(), before);
    cluster.update(2, automatic("web", &[(443, Protocol::Tcp), (8080, Protocol::Tcp)]));
    assert_eq!(ports(&cluster, 2), ["30002->443/tcp", "30001->8080/tcp"]);
    cluster.service(3, automatic("api", &[(80, Protocol::Tcp)]));
    assert_eq!(ports(&cluster, 3), ["30003->80/tcp"]);
}
