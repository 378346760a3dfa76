//! Requests about services, and the errors for invalid ones.

use tonic::Code;
use warren_client::{Error, NodeChange};
use warren_proto::convert::stored_service_spec;
use warren_proto::v1::service_spec::Mode;
use warren_proto::v1::services_client::ServicesClient;
use warren_proto::{Problem, v1};
use warren_types::{
    ClusterSettings, ClusterSettingsChange, Id, Mount, MountSource, Protocol, PublishMode, PublishedPort,
    SecretObjectMount, ServiceId, ServiceMode,
};

use crate::fixture::{CallerKind, ManagerFixture, WAIT_DEADLINE, new_id, spec};
use crate::worker::ScriptedWorker;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_is_managed_over_tls_and_socket() {
    let world = ManagerFixture::new().await;
    for (client, name) in [(world.local().await, "local"), (world.admin().await, "remote")] {
        let (services, id) = (client.services(), new_id());
        let made = services.create(id, &spec(name, 2)).await.unwrap();
        assert_eq!(services.create(id, &spec(name, 2)).await.unwrap().version, made.version, "a retry");
        assert_eq!(services.get(name).await.unwrap().id, made.id);
        assert_eq!(services.get(&made.id).await.unwrap().id, made.id);
        let scaled = services.scale(name, 5, Some(made.version)).await.unwrap();
        let replicas = scaled.spec.unwrap().mode;
        assert_eq!(replicas, Some(Mode::Replicated(v1::Replicated { replicas: 5 })));
        let conflict = services.scale(name, 6, Some(made.version)).await.unwrap_err();
        check(&problem(conflict), Code::Aborted, "VERSION_CONFLICT", &[]);
        let removed = services.remove(name, None, false).await.unwrap();
        assert!(removed.removing);
        // No worker ever had its tasks, so nothing delays the removal.
        warren_testkit::wait::eventually_async(
            crate::fixture::WAIT_DEADLINE,
            "the service to go",
            || async {
                match services.get(name).await {
                    Err(error) if error.is_not_found() => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            },
        )
        .await;
    }
    let info = world.local().await.cluster().info().await.unwrap();
    assert_eq!((info.services, info.tasks, info.nodes, info.leader), (0, 0, 1, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_settings_are_compared_set_and_survive_a_restart() {
    let mut world = ManagerFixture::new().await;
    let client = world.admin().await;
    let before = client.cluster().info().await.unwrap();
    let change = ClusterSettingsChange { task_history_limit: Some(2), ..Default::default() };
    let after = client.cluster().update(&change, None, Some(before.settings_version)).await.unwrap();
    let settings = ClusterSettings { task_history_limit: 2, ..Default::default() };
    assert_eq!(after.settings, Some((&settings).into()));
    assert!(after.settings_version > before.settings_version, "{after:?}");
    let change = ClusterSettingsChange { task_history_limit: Some(3), ..Default::default() };
    let conflict = client.cluster().update(&change, None, Some(before.settings_version)).await.unwrap_err();
    check(&problem(conflict), Code::Aborted, "VERSION_CONFLICT", &[]);
    let change = ClusterSettingsChange { max_replicas_per_service: Some(0), ..Default::default() };
    let refused = client.cluster().update(&change, None, None).await.unwrap_err();
    let path = "settings.maxReplicasPerService";
    check(&problem(refused), Code::InvalidArgument, "INVALID_ARGUMENT", &[path]);
    world.stop().await;
    world.start(false).await.unwrap();
    let info = world.local().await.cluster().info().await.unwrap();
    assert_eq!((info.settings, info.settings_version), (after.settings, after.settings_version));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_replicas_need_a_confirmation_and_make_few_tasks() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let services = client.services();
    let (id, many) = (new_id(), spec("web", 1_000_000));
    let refused = problem(services.create(id, &many).await.unwrap_err());
    check(&refused, Code::FailedPrecondition, "TOO_MANY_REPLICAS", &[]);
    assert!(refused.message.contains("max-replicas-per-service"), "{refused:?}");
    let insists = services.allow_many_replicas(true);
    insists.create(id, &many).await.unwrap();
    // No node has room, since no worker is connected.
    let counted = || async {
        let service = services.get("web").await.unwrap();
        let found = (service.tasks, service.uncreated_tasks);
        if found == (100, 999_900) { Ok(()) } else { Err(format!("{found:?}")) }
    };
    warren_testkit::wait::eventually_async(crate::fixture::WAIT_DEADLINE, "100 tasks", counted).await;
    services.scale("web", 999_999, None).await.unwrap();
    services.scale("web", 3, None).await.unwrap();
    let refused = problem(services.scale("web", 10_001, None).await.unwrap_err());
    check(&refused, Code::FailedPrecondition, "TOO_MANY_REPLICAS", &[]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_node_can_run_is_refused_by_the_api() {
    let world = ManagerFixture::new().await;
    let mut wrong = spec("other", 1);
    wrong.task.image = "UPPER/Bad:::tag".parse().unwrap();
    wrong.task.sysctls = [("vm.swappiness".to_owned(), "1".to_owned())].into();
    wrong.task.container_labels = [("warren.task".to_owned(), "1".to_owned())].into();
    let source = MountSource::Tmpfs { size: None, mode: None, exec: false };
    wrong.task.mounts = vec![Mount { target: "/proc/x".into(), source, read_only: false }];
    let config = SecretObjectMount::new("web".parse().unwrap());
    wrong.task.configs = vec![SecretObjectMount { target: Some("/etc".into()), ..config }];
    let refused = problem(world.admin().await.services().create(new_id(), &wrong).await.unwrap_err());
    let fields = [
        "image",
        "containerLabels[\"warren.task\"]",
        "sysctls[\"vm.swappiness\"]",
        "mounts[0].target",
        "configs[0].target",
    ];
    let paths = fields.map(|field| format!("spec.task.{field}"));
    let paths = paths.each_ref().map(String::as_str);
    check(&refused, Code::InvalidArgument, "INVALID_ARGUMENT", &paths);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_come_in_pages() {
    let world = ManagerFixture::new().await;
    let mut expected = Vec::new();
    for number in 0..5 {
        let name = format!("s{number}");
        world.local().await.services().create(new_id(), &spec(&name, 0)).await.unwrap();
        expected.push(name);
    }
    let mut raw = ServicesClient::new(world.channel(CallerKind::Local).await);
    let (mut page_token, mut found, mut pages) = (String::new(), Vec::new(), 0);
    loop {
        let request = v1::ListServicesRequest { page_size: 2, page_token, ..Default::default() };
        let page = raw.list(request).await.unwrap().into_inner();
        found.extend(page.services.into_iter().map(|service| service.spec.unwrap().name));
        pages += 1;
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!((found, pages), (expected, 3));
    let page_token = "No Name".into();
    let request = v1::ListServicesRequest { page_size: 2, page_token, ..Default::default() };
    let refused = Problem::from(&raw.list(request).await.unwrap_err());
    check(&refused, Code::InvalidArgument, "INVALID_ARGUMENT", &["pageToken"]);
}

fn published() -> PublishedPort {
    PublishedPort {
        host_ip: None,
        host_port: 8080,
        container_port: 80,
        protocol: Protocol::Tcp,
        mode: PublishMode::Host,
        prefer_local: false,
        client_affinity: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_are_limited_to_names_and_to_summaries() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    let label_add = [("zone".to_owned(), "a".to_owned())].into();
    client.nodes().update("n1", &NodeChange { label_add, ..NodeChange::default() }).await.unwrap();
    for name in ["web", "web-2", "web-each", "db"] {
        let mut spec = spec(name, 3);
        spec.labels = [("tier".to_owned(), name.to_owned())].into();
        spec.task.command = Some(vec!["run".into()]);
        if name == "web-each" {
            (spec.mode, spec.per) = (ServiceMode::Global, Some("node.labels.zone".parse().unwrap()));
            spec.ports = vec![published()];
        }
        client.services().create(new_id(), &spec).await.unwrap();
    }
    let services = client.services().named("web");
    let mut worker = ScriptedWorker::dial(&world).await;
    let run = async {
        // Until managers have nothing to write any more.
        loop {
            worker.apply_assignment().await;
            let found = services.list().await.unwrap();
            let is_complete = |service: &v1::Service| {
                let rollout = service.rollout.as_ref().unwrap();
                let runs = rollout.total > 0 && service.running == rollout.total;
                runs && rollout.state() == v1::RolloutState::Completed
            };
            if found.iter().all(is_complete) {
                break;
            }
        }
    };
    tokio::time::timeout(WAIT_DEADLINE, run).await.expect("all tasks run");
    let whole = services.list().await.unwrap();
    let short = services.summaries_as(|summary| summary).await.unwrap();
    let shown = |it: &v1::ServiceSummary| {
        (it.name.clone(), it.global, it.per.clone(), it.ports.len(), it.running, it.replicas)
    };
    let expected = [
        ("web".to_owned(), false, String::new(), 0, 3, 3),
        ("web-2".to_owned(), false, String::new(), 0, 3, 3),
        ("web-each".to_owned(), true, "node.labels.zone".to_owned(), 1, 1, 1),
    ];
    assert_eq!(short.iter().map(shown).collect::<Vec<_>>(), expected);
    assert_eq!(whole.len(), short.len());
    for (whole, short) in whole.into_iter().zip(&short) {
        assert_eq!(*short, v1::ServiceSummary::from(&whole));
        assert_eq!((short.labels.len(), short.image.is_empty()), (1, false));
        let whole = stored_service_spec(whole.spec.unwrap()).unwrap();
        assert_eq!(whole.task.command, Some(vec!["run".to_owned()]));
    }
    assert_eq!(services.names().await.unwrap(), ["web", "web-2", "web-each"]);
    let mut raw = ServicesClient::new(world.channel(CallerKind::Local).await);
    let request = v1::ListServicesRequest { content: 9, ..Default::default() };
    let refused = Problem::from(&raw.list(request).await.unwrap_err());
    check(&refused, Code::InvalidArgument, "INVALID_ARGUMENT", &["content"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_spec_is_refused_with_fields() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let services = client.services();
    let mut raw = ServicesClient::new(world.channel(CallerKind::Local).await);

    let mut wrong: v1::ServiceSpec = (&spec("web", 1)).into();
    wrong.name = "Web!".into();
    wrong.mode = Some(Mode::Replicated(v1::Replicated { replicas: -1 }));
    let request =
        v1::CreateServiceRequest { id: new_id().to_string(), spec: Some(wrong), ..Default::default() };
    let refused = Problem::from(&raw.create(request).await.unwrap_err());
    let fields = ["spec.name", "spec.mode.replicated.replicas"];
    check(&refused, Code::InvalidArgument, "INVALID_ARGUMENT", &fields);
    let mut small = spec("small", 1);
    small.task.limits.memory = Some(warren_types::Bytes(1 << 20));
    let refused = problem(services.create(new_id(), &small).await.unwrap_err());
    check(&refused, Code::InvalidArgument, "INVALID_ARGUMENT", &["spec.task.limits.memory"]);

    let mut web = spec("web", 0);
    web.ports = vec![published()];
    let id = ServiceId(Id(36));
    services.create(id, &web).await.unwrap();
    let refused = problem(services.create(new_id(), &web).await.unwrap_err());
    check(&refused, Code::AlreadyExists, "ALREADY_EXISTS", &[]);
    let refused = problem(services.create(id, &spec("other", 0)).await.unwrap_err());
    check(&refused, Code::AlreadyExists, "ALREADY_EXISTS", &[]);
    web.name = "web2".parse().unwrap();
    let refused = problem(services.create(new_id(), &web).await.unwrap_err());
    check(&refused, Code::AlreadyExists, "PORT_TAKEN", &[]);
    assert!(refused.message.contains("8080") && refused.message.contains("service web"), "{refused}");

    services.create(ServiceId(Id(37)), &spec("twin", 0)).await.unwrap();
    let refused = problem(services.get("000").await.unwrap_err());
    check(&refused, Code::InvalidArgument, "AMBIGUOUS", &[]);
    let refused = problem(services.get("nothing").await.unwrap_err());
    check(&refused, Code::NotFound, "NOT_FOUND", &[]);
    let scale = v1::ScaleServiceRequest {
        reference: "web".into(),
        version: None,
        replicas: -2,
        ..Default::default()
    };
    let refused = Problem::from(&raw.scale(scale).await.unwrap_err());
    check(&refused, Code::InvalidArgument, "INVALID_ARGUMENT", &["replicas"]);
    let refused = problem(services.scale("web", 2_000_000, None).await.unwrap_err());
    check(&refused, Code::InvalidArgument, "INVALID_ARGUMENT", &["replicas"]);
}

#[track_caller]
fn check(problem: &Problem, code: Code, reason: &str, fields: &[&str]) {
    let found: Vec<&str> = problem.violations.0.iter().map(|wrong| wrong.path.as_str()).collect();
    assert_eq!((problem.code, problem.reason.as_str(), &found[..]), (code, reason, fields), "{problem}");
}

fn problem(error: Error) -> Problem {
    match error {
        Error::Refused { problem } => problem,
        other => panic!("not refused: {other}"),
    }
}
