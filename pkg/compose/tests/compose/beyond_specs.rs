//! What a service has beside its spec: dependencies, a build, paths of the machine of the files.

use warren_compose::stack::StackService;
use warren_types::RestartCondition;

use crate::stack::{objects, spec};
use crate::{lines, web};

/// One service of a file with these keys and two others.
fn first_of_three(keys: &str) -> StackService {
    let text = web(keys) + "  init: {image: x}\n  db: {image: x}\n";
    let objects = objects(&[("compose.yaml", &text)]).unwrap_or_else(|why| panic!("{keys}: {why}"));
    objects.services.into_iter().find(|service| service.spec.name.as_str() == "shop_web").unwrap()
}

#[test]
fn dependencies_have_conditions() {
    let keys = "links: [db]\ndepends_on:\n  init: {condition: service_completed_successfully}\n  db: \
                {condition: service_healthy, restart: true}";
    let found = first_of_three(keys).dependencies;
    let found: Vec<String> =
        found.iter().map(|one| format!("{} {:?} {}", one.service, one.condition, one.restart)).collect();
    assert_eq!(found, ["shop_db Ready true", "shop_init Completed false"]);
    // What others wait for is not started again after its end.
    let condition = |init: &str| {
        let text = web("depends_on: {init: {condition: service_completed_successfully}}") + init;
        let objects = objects(&[("compose.yaml", &text)]).unwrap();
        objects.services[0].spec.task.restart.condition
    };
    assert_eq!(condition("  init: {image: x}"), RestartCondition::None);
    let on_failure = "  init: {image: x, deploy: {restart_policy: {condition: on-failure}}}";
    assert_eq!(condition(on_failure), RestartCondition::OnFailure);
}

#[test]
fn image_is_built_with_the_flags_of_its_file() {
    let service = |keys: &str| first_of_three(keys).build.unwrap();
    let build = service("build: ./web");
    assert_eq!((build.context.as_str(), build.flags.len(), build.has_image), ("/app/web", 0, true));
    let address = service("build: {context: 'https://example.com/web.git#main', dockerfile: x}");
    assert_eq!(address.context, "https://example.com/web.git#main");
    assert_eq!(address.flags, ["--file=x"]);
    let flags = service(
        "platform: linux/arm64\nbuild: {context: web, dockerfile: x, args: [A=1, B], target: t, pull: true}",
    )
    .flags;
    let expected = ["--file=/app/web/x", "--build-arg=A=1", "--build-arg=B", "--target=t", "--pull=true"];
    assert_eq!(flags, [&expected[..], &["--platform=linux/arm64"]].concat());
    let unnamed = objects(&[("compose.yaml", "services: {web: {build: .}}")]).unwrap().services.remove(0);
    assert_eq!(unnamed.spec.task.image.as_str(), "localhost/shop_web:latest");
    assert!(!unnamed.build.unwrap().has_image);
}

#[test]
fn relative_paths_are_on_the_machine_of_the_files() {
    let local = |volume: &str| {
        let found = first_of_three(&format!("volumes: [{volume}]")).local_paths;
        found.into_iter().map(|local| (local.path.display().to_string(), local.create)).collect::<Vec<_>>()
    };
    assert_eq!(local("'./x/../y:/y:ro'"), [("/app/y".to_owned(), true)]);
    let long = "{type: bind, source: y, target: /y, bind: {create_host_path: false}}";
    assert_eq!(local(long), [("/app/y".to_owned(), false)]);
    assert_eq!(local("/y:/y"), []);
}

#[test]
fn container_name_is_an_alias() {
    let aliases = |keys: &str| {
        let network = serde_json::to_value(spec(keys)).unwrap()["task"]["network"].take();
        network["networks"][0]["aliases"].to_string()
    };
    assert_eq!(aliases("container_name: shop-web-1"), r#"["shop-web-1","web"]"#);
    assert_eq!(aliases("container_name: web"), r#"["web"]"#);
    let found = objects(&[("compose.yaml", &web("container_name: Web.1"))]).unwrap();
    let expected = "compose.yaml:4:21: services.web.container_name: has no effect: it is not a DNS label";
    assert!(lines(&found.warnings).starts_with(expected), "{}", lines(&found.warnings));
}
