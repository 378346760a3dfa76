//! `warren service create`.

use std::path::Path;

use warren_proto::v1;
use warren_types::{Id, ServiceId, ServiceSpec, Violations};

use crate::args::value::{self, Variable};
use crate::args::{CreateArgs, Format, Global};
use crate::connect::connect;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::view::service::ServiceView;
use crate::wait::{Goal, Wanted, until_done};

pub async fn run(global: &Global, args: CreateArgs) -> Result<(), Failure> {
    let detach = args.detach;
    let name = args.name.clone().or_else(|| args.positional_name.clone()).unwrap_or_default();
    let what = format!("service {name} was not created");
    let files =
        args.env_file.iter().map(|file| read_variables(file, &what)).collect::<Result<Vec<_>, _>>()?;
    let env = environment(files.into_iter().flatten().collect(), &args.env, |name| std::env::var(name).ok())
        .map_err(|why| Failure::new(Exit::Usage, &what, why, "give it a value: --env NAME=VALUE"))?;
    let spec = spec(name, args, env).map_err(|fields| Failure::invalid(&what, fields))?;

    let client = connect(global, &what).await?;
    // Made once: a create that is sent again is the same create.
    let id = ServiceId(Id(rand::random()));
    let created = client.services().create(id, &spec).await;
    let created = created.map_err(|error| Failure::of_client(&what, error))?;
    eprintln!("service {} created", spec.name);
    if !detach {
        until_done(&client, &[Wanted::new(&created, Goal::Running)], global.timeout).await?;
    }
    match global.output {
        Format::Table | Format::Wide => output::print(&format!("{}\n", created.id)),
        Format::Json | Format::Yaml => {
            let shown =
                super::find(&client, &created.id, "the service is created, but cannot be shown").await?;
            output::document(global.output, &ServiceView::try_from(shown)?)
        }
    }
}

fn read_variables(file: &Path, what: &str) -> Result<Vec<Variable>, Failure> {
    let failed = |exit, why: String| {
        let why = format!("{}: {why}", file.display());
        Failure::new(exit, what, why, "check the file given as --env-file")
    };
    let text = std::fs::read_to_string(file).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => failed(Exit::NotFound, "there is no such file".to_owned()),
        _ => failed(Exit::Failed, error.to_string()),
    })?;
    value::variables(&text).map_err(|why| failed(Exit::Usage, why))
}

/// Variables of files first, in their order; one of the flags takes the place of those of its name. Those
/// without a value get this command's own.
fn environment(
    files: Vec<Variable>,
    flags: &[Variable],
    own: impl Fn(&str) -> Option<String>,
) -> Result<Vec<v1::EnvVar>, String> {
    let mut from_files: Vec<Variable> = Vec::new();
    for variable in files {
        // As in a shell that reads the files, the last one counts.
        from_files.retain(|earlier| earlier.name != variable.name);
        from_files.push(variable);
    }
    from_files.retain(|variable| !flags.iter().any(|flag| flag.name == variable.name));
    let all = from_files.iter().chain(flags);
    all.map(|Variable { name, value }| {
        let value = value.clone().or_else(|| own(name));
        let value = value.ok_or_else(|| format!("{name} has no value, and is not set here either"))?;
        Ok(v1::EnvVar { name: name.clone(), value })
    })
    .collect()
}

/// The spec that the flags ask for; what is wrong with it has the paths of a request.
fn spec(name: String, args: CreateArgs, env: Vec<v1::EnvVar>) -> Result<ServiceSpec, Violations> {
    let list = |items: Vec<String>| (!items.is_empty()).then_some(v1::StringList { items });
    let words = if args.args.is_empty() { args.arg } else { args.args };
    let (cpu, memory) = (args.reserve_cpus.unwrap_or_default(), args.reserve_memory.unwrap_or_default());
    let limits = v1::Limits { cpu_milli: args.cpus.map(|c| c.0), memory_bytes: args.memory.map(|m| m.0) };
    let grace = args.stop_grace.as_millis();
    let task = v1::TaskSpec {
        image: args.image,
        command: list(args.command),
        args: list(words),
        env,
        limits: Some(limits),
        reservations: Some(v1::Resources { cpu_milli: cpu.0, memory_bytes: memory.0 }),
        stop_grace_ms: Some(u64::try_from(grace).unwrap_or(u64::MAX)),
    };
    let mut labels = std::collections::BTreeMap::new();
    let mut wrong = Violations::default();
    for (key, value) in args.label {
        if labels.insert(key.clone(), value).is_some() {
            wrong.add(format!("spec.labels[{key:?}]"), "is given twice");
        }
    }
    let replicated = v1::Replicated { replicas: args.replicas.0 };
    let wire = v1::ServiceSpec {
        name,
        labels,
        task: Some(task),
        ports: args.publish.iter().map(Into::into).collect(),
        mode: Some(v1::service_spec::Mode::Replicated(replicated)),
    };
    match ServiceSpec::try_from(wire) {
        Ok(spec) => wrong.into_result(spec),
        Err(inner) => {
            wrong.nest("spec", inner);
            Err(wrong)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command, ServiceCommand};

    fn parse(line: &[&str]) -> CreateArgs {
        let start = ["warren", "service", "create", "web", "--image", "nginx:1.27"];
        let cli = Cli::try_parse_from(start.iter().chain(line)).unwrap();
        match cli.command {
            Command::Service(ServiceCommand::Create(args)) => *args,
            other => panic!("{other:?}"),
        }
    }

    fn built(line: &[&str]) -> Result<ServiceSpec, Violations> {
        let args = parse(line);
        let env = environment(Vec::new(), &args.env, |_| Some("own".into())).unwrap();
        spec("web".into(), args, env)
    }

    #[test]
    fn every_flag_reaches_the_spec() {
        let spec = built(&[
            "--replicas=2",
            "--label=app=shop",
            "--env=A=1",
            "-eB",
            "--command=/bin/sh",
            "--arg",
            "-c",
            "--arg=sleep 1",
            "--cpus=0.5",
            "--memory=256Mi",
            "--reserve-cpus=250m",
            "--reserve-memory=64Mi",
            "--stop-grace=1m",
            "-p8080:80",
            "--publish=127.0.0.1:8443:443",
        ]);
        let view = crate::view::spec::SpecView::from(&spec.unwrap());
        insta::assert_snapshot!(crate::output::tests::rendered(Format::Yaml, &view), @r#"
        name: web
        labels:
          app: shop
        mode:
          replicated:
            replicas: 2
        task:
          image: nginx:1.27
          command:
          - /bin/sh
          args:
          - -c
          - sleep 1
          env:
          - name: A
            value: "1"
          - name: B
            value: own
          limits:
            cpu: "0.5"
            memory: 256MiB
          reservations:
            cpu: "0.25"
            memory: 64MiB
          stopGrace: 1m
        ports:
        - hostPort: 8080
          containerPort: 80
          protocol: tcp
          mode: host
        - hostIp: "127.0.0.1"
          hostPort: 8443
          containerPort: 443
          protocol: tcp
          mode: host
        "#);
    }

    #[test]
    fn words_after_the_dashes_are_arguments() {
        let spec = built(&["--", "-c", "sleep 1"]).unwrap();
        assert_eq!(spec.task.args, Some(vec!["-c".into(), "sleep 1".into()]));
        assert_eq!(spec.task.command, None);
        assert_eq!(built(&[]).unwrap().task.args, None);
    }

    #[test]
    fn what_is_wrong_has_its_path() {
        let wrong = built(&["--replicas", "-1"]).unwrap_err().to_string();
        assert_eq!(wrong, "spec.mode.replicated.replicas: -1 is negative; give 0 to 1000000");
        let wrong = built(&["--memory=1Mi"]).unwrap_err().to_string();
        assert_eq!(wrong, "spec.task.limits.memory: 1MiB is below the runtime's minimum of 6MiB");
        let wrong =
            built(&["-p80:80", "-p80:81", "--label=a=1", "--label=a=2", "-eA=1", "-eA=2"]).unwrap_err();
        let paths: Vec<String> = wrong.0.into_iter().map(|v| v.path).collect();
        assert_eq!(paths, ["spec.labels[\"a\"]", "spec.task.env[1].name", "spec.ports[1].hostPort"]);
    }

    #[test]
    fn flags_win_over_files_and_names_alone_take_the_own_value() {
        let variable = |text: &&str| value::variable(text).unwrap();
        let env = |files: &[&str], flags: &[&str]| {
            let own = |name: &str| (name == "HERE").then(|| "own".to_owned());
            let files = files.iter().map(variable).collect();
            let flags: Vec<Variable> = flags.iter().map(variable).collect();
            let env = environment(files, &flags, own)?;
            Ok::<_, String>(
                env.into_iter().map(|var| format!("{}={}", var.name, var.value)).collect::<Vec<_>>(),
            )
        };
        assert_eq!(env(&["A=1", "B=1", "A=2"], &["B=3", "HERE"]).unwrap(), ["A=2", "B=3", "HERE=own"]);
        assert_eq!(env(&[], &["AWAY"]).unwrap_err(), "AWAY has no value, and is not set here either");
        // What a flag says twice is for the spec's own check to refuse.
        assert_eq!(env(&[], &["A=1", "A=2"]).unwrap(), ["A=1", "A=2"]);
    }
}
