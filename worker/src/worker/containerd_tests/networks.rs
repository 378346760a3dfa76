//! Containers with names, in the network of the host, and without one.

use std::cell::RefCell;
use std::collections::BTreeSet;

use warren_image::ContainerdConnection;
use warren_proto::v1;
use warren_runtime::fake::FakeRuntime;
use warren_types::{Id, NetworkView, NodeId, TaskNetworkMode};

use super::*;
use crate::fake_manager::FakeSession;
use crate::fixtures::{add_service, catalogue, image, images as images_of_tests, network_view};

/// Where other nodes would send packets for this one.
const DATA_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What this crate leaves in the kernel: devices, addresses, routes, rules, chains, tables.
fn kernel_state() -> BTreeSet<String> {
    let commands: [(&str, &[&str]); 6] = [
        ("ip", &["-o", "-br", "link"]),
        ("ip", &["-o", "-4", "addr"]),
        ("ip", &["-4", "route", "show", "table", "all"]),
        ("ip", &["-4", "rule"]),
        ("iptables-save", &[]),
        ("nft", &["list", "tables"]),
    ];
    let lines = commands.iter().flat_map(|(program, args)| {
        let text = run(program, args);
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    });
    lines.filter(|line| ["warren", "WARREN", "10.210."].iter().any(|ours| line.contains(ours))).collect()
}

/// Serves a page, and writes that of the service `web` to `/got`. The C library of a static program resolves no names,
/// so it is given what nslookup found.
const FETCH_PAGE: &str = "/bin/busybox httpd -p 80 -h /www
    resolve() {
      /bin/busybox nslookup -type=a $1 | /bin/busybox awk '/^Address/ { found = $2 } END { print found }'
    }
    request() { /bin/busybox printf 'GET /index.html HTTP/1.0\\r\\n\\r\\n'; }
    until request | /bin/busybox nc -w 1 $(resolve web) 80 > /got.new; do /bin/busybox sleep 0.1; done
    /bin/busybox mv /got.new /got";

/// Runs a shell script, which is checked by a TCP connection to the port.
fn scripted(number: u64, mode: TaskNetworkMode, port: u16, script: &str) -> TaskAssignment {
    let mut task = task(number);
    task.spec.network = mode;
    task.spec.stop_grace = Duration::from_secs(1);
    let probe = Probe::Tcp { port };
    task.spec.health = Some(HealthCheck { interval: Duration::from_secs(1), ..HealthCheck::new(probe) });
    task.spec.command = Some(["/bin/busybox", "sh", "-c"].map(str::to_owned).to_vec());
    task.spec.args = Some(vec![script.to_owned()]);
    task
}

/// Acknowledges reports until there was one that matches of each task.
async fn wait_for_each(
    session: &mut FakeSession,
    tasks: &[TaskAssignment],
    expected: impl Fn(&v1::TaskReport) -> bool,
) {
    let missing: BTreeSet<String> = tasks.iter().map(|task| task.id.to_string()).collect();
    let missing = RefCell::new(missing);
    let is_last = |report: &v1::TaskReport| {
        expected(report) && missing.borrow_mut().remove(&report.task_id) && missing.borrow().is_empty()
    };
    store_reports_until(session, is_last).await;
}

/// Removes the tasks, and what the agent set up, and checks that nothing is left.
async fn remove_all(worker: Worker, mut session: FakeSession, tasks: &[TaskAssignment]) {
    let removed =
        |task: &TaskAssignment| TaskAssignment { desired: DesiredTaskState::Remove, ..task.clone() };
    session.assign(8, tasks.iter().map(removed).collect()).await;
    wait_for_each(&mut session, tasks, |report| report.removed).await;
    session.assign(9, vec![]).await;
    worker.stop().await.unwrap();
    assert_eq!(kernel_state(), BTreeSet::new());
}

/// Content of a file of a container that appears some time.
async fn file_of(runtime: &ContainerdRuntime, number: u64, file: &str) -> String {
    let pid = pid(runtime, number).await.unwrap();
    let path = Path::new("/proc").join(pid.to_string()).join("root").join(file);
    let read = async {
        loop {
            match std::fs::read_to_string(&path) {
                Ok(text) if !text.is_empty() => return text,
                // Between two attempts; the loop has a deadline.
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(TIMEOUT, read).await.unwrap_or_else(|_| panic!("{path:?} does not appear"))
}

#[test]
fn containers_resolve_names_and_use_each_network_mode() {
    in_own_namespace(|| async {
        run("ip", &["addr", "add", &format!("{DATA_ADDRESS}/32"), "dev", "lo"]);
        let machine = Machine::new(settings(), Some(DATA_ADDRESS)).await;
        // `web` is this task itself: its name leads by the virtual address back to it.
        let by_name = &format!(
            "{FETCH_PAGE}
            while true; do resolve db > /found.new; /bin/busybox mv /found.new /found; /bin/busybox sleep 0.2; done"
        );
        let on_host = "exec /bin/busybox httpd -f -p 8081 -h /www";
        let alone = "/bin/busybox cat /proc/net/dev > /devices; exec /bin/busybox httpd -f -p 80 -h /www";
        let tasks = [
            scripted(1, TaskNetworkMode::default(), 80, by_name),
            scripted(2, TaskNetworkMode::Host, 8081, on_host),
            scripted(3, TaskNetworkMode::None, 80, alone),
        ];
        let tasks = tasks.map(|task| TaskAssignment { digest: Some(machine.digest.clone()), ..task });
        let (worker, mut manager) = machine.worker().await;
        let mut session = manager.next_welcomed_session().await;
        session.send_view(&network_view(1)).await;
        session.assign(1, tasks.to_vec()).await;
        wait_for_each(&mut session, &tasks, |report| report.ready).await;
        let answer = session.alive_during(file_of(&machine.runtime, 1, "got")).await;
        assert!(answer.ends_with(PAGE), "{answer}");
        assert_eq!(
            container_file(pid(&machine.runtime, 1).await.unwrap(), "etc/resolv.conf"),
            "search warren\nnameserver 10.210.0.1\noptions ndots:0 timeout:1 attempts:5\n"
        );
        let devices = file_of(&machine.runtime, 3, "devices").await;
        assert_eq!(
            devices.lines().skip(2).map(|line| line.trim().split(':').next()).collect::<Vec<_>>(),
            [Some("lo")]
        );
        assert_conditions_only_of_machine(&worker);
        let state = kernel_state();
        for ours in ["warren-vx", "10.210.1.0/24 via 10.210.1.1 dev warren-vx", "table ip warren"] {
            assert!(state.iter().any(|line| line.contains(ours)), "no {ours} in {state:#?}");
        }
        worker.stop().await.unwrap();
        drop((session, manager));
        assert_eq!(kernel_state(), state, "a stopped agent leaves everything");

        // The next one answers from its cache, without a manager.
        let (worker, mut manager) = machine.worker().await;
        let found = file_of(&machine.runtime, 1, "found").await;
        assert!(!found.contains("10.210.224.2"), "{found}");
        let mut session = manager.next_welcomed_session().await;
        let mut view: NetworkView = network_view(2);
        let default = view.catalogues.values_mut().next().unwrap();
        add_service(Arc::make_mut(default), "db", 2, &[]);
        session.send_view(&view).await;
        let is_resolved = async || file_of(&machine.runtime, 1, "found").await.contains("10.210.224.2");
        session.alive_during(eventually("db is resolved", is_resolved)).await;
        remove_all(worker, session, &tasks).await;
    });
}

#[test]
fn container_reaches_service_on_other_node_by_its_name() {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let (done, is_done) = tokio::sync::oneshot::channel();
    let (entered, namespace) = std::sync::mpsc::channel();
    let settings_of = |node: u8| NodeSettings {
        node: NodeId(Id(u128::from(node) + 1)),
        number: node.into(),
        subnets: vec![format!("10.210.{}.0/24", node - 1).parse().unwrap()],
        ..settings()
    };
    let mut view = network_view(1);
    let backend = Ipv4Addr::new(10, 210, 1, 2);
    let mut default = catalogue("default", 1);
    add_service(&mut default, "web", 1, &[(backend, true)]);
    add_service(&mut default, "client", 2, &[(task(1).address, true)]);
    view.catalogues = [(default.network, Arc::new(default))].into();
    let (near, far) = (settings_of(1), settings_of(2));
    let view_of_far = view.clone();
    let other = std::thread::spawn(move || {
        in_own_namespace(move || async move {
            let machine = Machine::new(far, Some([198, 51, 100, 2].into())).await;
            let (process, thread) = (std::process::id(), nix::unistd::gettid());
            entered.send(format!("/proc/{process}/task/{thread}/ns/net")).unwrap();
            let serve = "exec /bin/busybox httpd -f -p 80 -h /www";
            let mut web = scripted(2, TaskNetworkMode::default(), 80, serve);
            (web.digest, web.address) = (Some(machine.digest.clone()), backend);
            let (worker, mut manager) = machine.worker().await;
            let (mut session, _) = manager.next_session().await;
            session.welcome(&machine.settings).await;
            session.send_view(&view_of_far).await;
            session.assign(1, vec![web.clone()]).await;
            wait_for_each(&mut session, &[web.clone()], |report| report.ready).await;
            ready.send(()).unwrap();
            session.alive_during(is_done).await.unwrap();
            remove_all(worker, session, &[web]).await;
        });
    });
    in_own_namespace(move || async move {
        let far = namespace.recv().unwrap();
        run("ip", &["link", "add", "near", "type", "veth", "peer", "name", "far", "netns", &far]);
        let enter = format!("--net={far}");
        for (device, address, within) in
            [("near", "198.51.100.1/24", false), ("far", "198.51.100.2/24", true)]
        {
            for command in [&["addr", "add", address, "dev", device][..], &["link", "set", device, "up"]] {
                match within {
                    true => run("nsenter", &[&[&enter, "ip"], command].concat()),
                    false => run("ip", command),
                };
            }
        }
        is_ready.recv().unwrap();
        let machine = Machine::new(near, Some(DATA_ADDRESS)).await;
        let mut client = scripted(1, TaskNetworkMode::default(), 80, &format!("{FETCH_PAGE}; sleep 1000"));
        client.digest = Some(machine.digest.clone());
        let (worker, mut manager) = machine.worker().await;
        let mut session = manager.next_welcomed_session().await;
        session.send_view(&view).await;
        session.assign(1, vec![client.clone()]).await;
        wait_for_each(&mut session, &[client.clone()], |report| report.ready).await;
        let answer = session.alive_during(file_of(&machine.runtime, 1, "got")).await;
        assert!(answer.ends_with(PAGE), "{answer}");
        done.send(()).unwrap();
        remove_all(worker, session, &[client]).await;
    });
    other.join().unwrap();
}

#[test]
fn occupied_overlay_port_is_a_condition_and_local_tasks_go_on() {
    in_own_namespace(|| async {
        run("ip", &["addr", "add", &format!("{DATA_ADDRESS}/32"), "dev", "lo"]);
        // As Docker Swarm does.
        run(
            "ip",
            &["link", "add", "other", "type", "vxlan", "id", "7", "local", "198.51.100.1", "dstport", "4789"],
        );
        run("ip", &["link", "set", "other", "up"]);
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().join("run");
        let _mounts = NetnsMounts(run_dir.join("netns"));
        let runtime = FakeRuntime::new();
        runtime.add_image(&image());
        let (authority, images) = (
            CertificateAuthority::create(&settings().cluster.to_string(), SystemTime::now()).unwrap(),
            ContainerdConnection::new(dir.path().join("none.sock"), "warren").unwrap(),
        );
        let identity = Identity::new(authority.cluster(), Role::Worker, settings().node.to_string()).unwrap();
        let config = WorkerConfig {
            data_dir: dir.path().to_owned(),
            run_dir: run_dir.clone(),
            managers: Vec::new(),
            certificate: ReloadableCertificate::new(&authority.issue(&identity, SystemTime::now()).unwrap()),
            trust: Trust::new(&authority.roots()).unwrap(),
            overrides: NodeOverrides { data_address: Some(DATA_ADDRESS), ..NodeOverrides::default() },
            user_ids: UserIds::default(),
            max_archive_bytes: 1 << 30,
            membership: None,
        };
        let backends = HostBackends {
            runtime: Arc::new(runtime),
            network: Arc::new(LinuxNetwork::new(&run_dir, warren_network::WireGuardProgram::own())),
            bind_dns: Arc::new(DnsSockets::bind),
            images: ImageStore::new(images, "overlayfs"),
            image_source: Arc::new(images_of_tests()),
            containerd: None,
            namespace: None,
        };
        let (mut manager, dial) = FakeManager::in_memory();
        let worker = Worker::start_with(config, backends, dial, system_random()).await.unwrap();
        let mut session = manager.next_welcomed_session().await;
        session.send_view(&network_view(1)).await;
        session.assign(1, vec![task(1)]).await;
        store_reports_until(&mut session, |report| report.ready).await;
        let expected = "UDP port 4789 of the overlay is in use by device other";
        // A task does not wait for the virtual addresses.
        eventually("there is a condition", async || worker.conditions().join("; ").contains(expected)).await;
        for ours in ["10.210.0.2 dev wc", "10.210.224.1/32"] {
            eventually(ours, async || kernel_state().iter().any(|line| line.contains(ours))).await;
        }
        worker.stop().await.unwrap();
    });
}
