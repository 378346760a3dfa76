mod health;
mod secret_objects;
mod update;

use clap::Parser;
use serde_json::Value;
use warren_types::Placement;

use super::*;
use crate::args::{Cli, CliCommand, OutputFormat, ServiceCommand};
use crate::command::environment;

fn service(line: &[&str]) -> Result<ServiceCommand, String> {
    let cli = Cli::try_parse_from([&["warren", "service"], line].concat());
    match cli.map_err(|error| error.to_string())?.command {
        CliCommand::Service(command) => Ok(command),
        other => panic!("{other:?}"),
    }
}

/// The spec that `service create web --image nginx:1.27` makes with more words.
pub fn created(more: &[&str]) -> Result<ServiceSpec, Violations> {
    match service(&[&["create", "web", "--image", "nginx:1.27"], more].concat()).unwrap() {
        ServiceCommand::Create(args) => {
            let env = environment::read(&args.additions, "x").unwrap();
            create("web", &args, &env, &SeccompFiles::default())
        }
        other => panic!("{other:?}"),
    }
}

pub fn changed(spec: &ServiceSpec, more: &[&str]) -> Result<ServiceSpec, Violations> {
    match service(&[&["update", "web"], more].concat()).unwrap() {
        ServiceCommand::Update(args) => {
            let env = environment::read(&args.additions.0, "x").unwrap();
            change(spec, &args, &env, &SeccompFiles::default())
        }
        other => panic!("{other:?}"),
    }
}

/// The flag without its value, if it is one that has a default: `--memory=` for `--memory=1Gi`.
pub fn reset_of(flag: &str) -> Option<String> {
    let (name, _) = flag.split_once('=')?;
    let reset = format!("{name}=");
    service(&["create", "web", "--image=nginx", &reset]).ok()?;
    let wrong = created(&[&reset]).err()?;
    wrong.0.iter().any(|violation| violation.path == name).then_some(reset)
}

/// Flags of every kind, as users write them.
const EVERY_KIND: &[&str] = &[
    "--replicas=2",
    "--max-per-node=1",
    "--pull=always",
    "--resolve-image=worker",
    "--label=app=shop",
    "--env=A=1",
    "--command=/bin/sh",
    "--arg",
    "-c",
    "--arg=sleep 1",
    "--workdir=/srv",
    "--user=www:www",
    "--hostname=front",
    "--tty",
    "--stdin",
    "--init",
    "--stop-signal=quit",
    "--stop-grace=1m",
    "--post-start=migrate --now",
    "--post-start=warm-up",
    "--pre-stop=flush",
    "--cpus=0.5",
    "--memory=256Mi",
    "--pids=64",
    "--reserve-cpus=250m",
    "--reserve-memory=64Mi",
    "--shm-size=128Mi",
    "--storage-limit=2Gi",
    "--oom-score-adj",
    "-500",
    "--privileged",
    "--no-new-privileges",
    "--seccomp=unconfined",
    "--apparmor=web",
    "--user-namespace=host",
    "--read-only",
    "--restart=on-failure",
    "--restart-delay=2s",
    "--restart-max=5",
    "--restart-window=10m",
    "--on-disconnect=stop-after=1m",
    "--replace-after=5m",
    "--log-max-size=1Mi",
    "--log-files=2",
    "--constraint",
    "node.labels.zone in (a,b)",
    "--toleration=dedicated=gpu:NoSchedule",
    "--toleration=*",
    "--prefer=spread=node.labels.zone",
    "--placement-pref=spread=engine.labels.rack",
    "-p8080:80",
    "--publish=127.0.0.1:8443:443",
    "--publish-on=node.labels.edge==true",
    "--network=default",
    "--network=front,alias=shop",
    "--alias=www",
    "--dns=192.0.2.53",
    "--dns-search=example.org",
    "--endpoint-mode=dnsrr",
    "--host=db:10.0.0.7",
    "--group=audio",
    "--tmpfs=/tmp:size=64Mi,mode=700",
    "--bind=/srv/data:/data:ro,rslave",
    "--volume=data:/var/lib/data:ro,subpath=a,nocopy",
    "--secret=db,uid=33,mode=0440",
    "--secret=key:/etc/key,template",
    "--config=site",
    "--health-http=/healthz",
    "--health-header=Host=shop.example",
    "--health-interval=10s",
    "--health-timeout=2s",
    "--health-retries=5",
    "--health-start-period=1m",
    "--health-start-interval=500ms",
    "--device=/dev/fuse",
    "--ulimit=nofile=1024:4096",
    "--sysctl=net.core.somaxconn=1024",
    "--container-label=tier=db",
    "--cap-add=net_admin",
    "--cap-drop=CAP_MKNOD",
];

#[test]
fn flags_of_every_kind_reach_the_spec() {
    let view = created(EVERY_KIND).unwrap();
    insta::assert_snapshot!(crate::output::tests::rendered(OutputFormat::Yaml, &view), @r#"
    name: web
    labels:
      app: shop
    mode:
      replicated:
        replicas: 2
    task:
      image: nginx:1.27
      pull: always
      resolveImage: worker
      command:
      - /bin/sh
      args:
      - -c
      - sleep 1
      env:
      - name: A
        value: "1"
      containerLabels:
        tier: db
      workdir: /srv
      user: www:www
      groups:
      - audio
      hostname: front
      hosts:
      - name: db
        address: "10.0.0.7"
      tty: true
      stdin: true
      init: true
      stopSignal: SIGQUIT
      stopGrace: 1m
      postStart:
      - command:
        - /bin/sh
        - -c
        - migrate --now
      - command:
        - /bin/sh
        - -c
        - warm-up
      preStop:
      - command:
        - /bin/sh
        - -c
        - flush
      limits:
        cpu: "0.5"
        memory: 256MiB
        pids: 64
      reservations:
        cpu: "0.25"
        memory: 64MiB
      ulimits:
      - name: nofile
        soft: "1024"
        hard: "4096"
      sysctls:
        net.core.somaxconn: "1024"
      shmSize: 128MiB
      storageLimit: 2GiB
      oomScoreAdj: -500
      privileged: true
      capAdd:
      - NET_ADMIN
      capDrop:
      - MKNOD
      noNewPrivileges: true
      seccomp: unconfined
      apparmor: web
      devices:
      - source: /dev/fuse
        target: /dev/fuse
        access: rwm
      readOnly: true
      mounts:
      - target: /tmp
        source:
          tmpfs:
            size: 64MiB
            mode: "0700"
            exec: false
        readOnly: false
      - target: /data
        source:
          bind:
            path: /srv/data
            propagation: rslave
            recursive: true
        readOnly: true
      - target: /var/lib/data
        source:
          volume:
            name: data
            subpath: a
            noCopy: true
        readOnly: true
      secrets:
      - source: db
        uid: 33
        mode: "0440"
        template: false
      - source: key
        target: /etc/key
        template: true
      configs:
      - source: site
        template: false
      health:
        probe:
          http:
            port: 80
            path: /healthz
            headers:
            - name: Host
              value: shop.example
        interval: 10s
        timeout: 2s
        retries: 5
        startPeriod: 1m
        startInterval: 500ms
      restart:
        condition: on-failure
        delay: 2s
        max: 5
        window: 10m
      onDisconnect:
        stopAfter: 1m
      logs:
        maxSize: 1MiB
        maxFiles: 2
      network:
        networks:
        - network: default
          aliases:
          - www
        - network: front
          aliases:
          - shop
          - www
      dns:
        servers:
        - "192.0.2.53"
        searches:
        - example.org
      userNamespace: host
    ports:
    - hostPort: 8080
      containerPort: 80
      protocol: tcp
      mode: ingress
    - hostIp: "127.0.0.1"
      hostPort: 8443
      containerPort: 443
      protocol: tcp
      mode: host
    placement:
      constraints:
      - node.labels.zone in (a,b)
      tolerations:
      - dedicated=gpu:NoSchedule
      - "*"
      maxPerNode: 1
      preferences:
      - spread=node.labels.zone
      - spread=engine.labels.rack
    replaceAfter: 5m
    endpointMode: dnsrr
    publishOn:
    - node.labels.edge == true
    "#);
}

#[test]
fn without_flags_everything_is_the_default() {
    let spec = created(&[]).unwrap();
    assert_eq!(spec.task, TaskSpec::new("nginx:1.27".parse().unwrap()));
    assert_eq!((spec.mode, spec.placement), (ServiceMode::Replicated { replicas: 1 }, Placement::default()));
    assert_eq!(created(&["--mode=global"]).unwrap().mode, ServiceMode::Global);
}

#[test]
fn bootstrap_service_may_have_a_task_per_value() {
    let global = &["--mode=global", "--per=node.labels.zone", "--bootstrap"];
    let spec = created(global).unwrap();
    let label = spec.per.as_ref().map(ToString::to_string);
    assert_eq!((label.as_deref(), spec.bootstrap), (Some("node.labels.zone"), true));
    check(global, &["--bootstrap=false"], &[("/bootstrap", Value::Null)]);
    check(global, &["--replace-after=1m"], &[("/replaceAfter", "1m".into())]);
    let wrong = "spec.mode: a global service has one task per value of its label; leave --replicas out";
    assert_eq!(changed(&spec, &["--replicas=2"]).unwrap_err().to_string(), wrong);
}

#[test]
fn arguments_are_words_none_or_the_images_own() {
    let args = |more: &[&str]| created(more).unwrap().task.args;
    assert_eq!(args(&[]), None);
    assert_eq!(args(&["--", "-c", "sleep 1"]), Some(vec!["-c".to_owned(), "sleep 1".to_owned()]));
    assert_eq!(args(&["--", ""]), Some(vec![String::new()]));
    assert_eq!(args(&["--no-args"]), Some(vec![]));
    assert!(service(&["create", "web", "--image=a", "--no-args", "--arg=b"]).is_err());
    assert!(service(&["create", "web", "--image=a", "--arg=b", "--", "c"]).is_err());
}

#[test]
fn violation_has_field_path() {
    let check = |more: &[&str], expected: &str| {
        assert_eq!(created(more).unwrap_err().to_string(), expected, "{more:?}");
    };
    check(&["--replicas", "-1"], "spec.mode.replicated.replicas: -1 is negative; give 0 to 1000000");
    check(&["--memory=1Mi"], "spec.task.limits.memory: 1MiB is below the runtime's minimum of 6MiB");
    check(&["--memory="], "--memory: is empty; leave it out for the default");
    check(&["--arg="], "--arg: is empty; leave it out for the default");
    let one_per_node = "spec.mode: a global service has one task per node; leave --replicas out";
    check(&["--mode=global", "--replicas=2"], one_per_node);
    let wrong =
        ["-p80:80", "-p80:81", "--label=a=1", "--label=a=2", "-eA=1", "-eA=2", "--tmpfs=/a", "--bind=/b:/a/"];
    let wrong = created(&wrong).unwrap_err();
    let paths: Vec<String> = wrong.0.into_iter().map(|v| v.path).collect();
    let desired = [
        "spec.labels[\"a\"]",
        "spec.task.env[1].name",
        "spec.task.mounts[1].target",
        "spec.ports[1].hostPort",
    ];
    assert_eq!(paths, desired);
}

/// The fields of the spec that an update changed, by path: what they are now.
#[track_caller]
fn check(before: &[&str], update: &[&str], expected: &[(&str, Value)]) {
    let spec = created(before).unwrap();
    let new = changed(&spec, update).unwrap();
    let documents = [&spec, &new].map(|spec| serde_json::to_value(spec).unwrap());
    let mut left = documents[0].clone();
    for (path, value) in expected {
        let found = documents[1].pointer(path).cloned().unwrap_or(Value::Null);
        assert_eq!(found, *value, "{path}");
        let (parent, field) = path.rsplit_once('/').unwrap();
        let parent = left.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        match value {
            Value::Null => parent.remove(field),
            value => parent.insert(field.to_owned(), value.clone()),
        };
    }
    assert_eq!(left, documents[1], "something else is different, too");
    // The second time there is nothing left to do.
    assert_eq!(changed(&new, update).unwrap(), new);
}

#[test]
fn an_update_has_every_flag_of_a_create() {
    use clap::CommandFactory;
    let root = Cli::command();
    let flags = |verb: &str| {
        let verb = root.find_subcommand("service").unwrap().find_subcommand(verb).unwrap();
        verb.get_arguments().filter_map(|flag| flag.get_long()).map(str::to_owned).collect::<Vec<_>>()
    };
    let update = flags("update");
    let has = |flag: &str| update.contains(&flag.to_owned());
    for flag in flags("create").iter().filter(|flag| !["name", "mode"].contains(&flag.as_str())) {
        assert!(has(flag) || has(&format!("{flag}-add")), "{flag}");
    }
    assert!(has("env-file") && has("env-add") && !has("env") && has("cap-drop"));
}
