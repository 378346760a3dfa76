//! Health checks from flags.

use super::*;

fn health(spec: &ServiceSpec) -> Value {
    serde_json::to_value(spec).unwrap()["task"]["health"].clone()
}

#[test]
fn a_health_check_asks_a_port_or_a_program() {
    let probe = |more: &[&str]| health(&created(more).unwrap())["probe"].clone();
    let http = |port: u16, path: &str| serde_json::json!({"http": {"port": port, "path": path}});
    assert_eq!(probe(&["--health-http=:8080/a?b=c"]), http(8080, "/a?b=c"));
    // Without a port the lowest that is published.
    assert_eq!(probe(&["--health-http=/", "-p8080:81", "-p8081:80"]), http(80, "/"));
    assert_eq!(probe(&["--health-tcp=5432"]), serde_json::json!({"tcp": {"port": 5432}}));
    let exec = |words: &[&str]| serde_json::json!({"exec": {"command": words}});
    assert_eq!(probe(&["--health-cmd=test -e /ok"]), exec(&["/bin/sh", "-c", "test -e /ok"]));
    assert_eq!(probe(&["--health-exec=/probe", "--health-exec", "-q"]), exec(&["/probe", "-q"]));
    let wrong = |more: &[&str]| created(more).unwrap_err().to_string();
    let no_port = "spec.task.health.probe.http.port: no port is published; give one: \
                   --health-http :PORT/PATH";
    assert_eq!(wrong(&["--health-http=/"]), no_port);
    let nothing = "requires a health check; give --health-http, --health-tcp, --health-cmd or --health-exec";
    assert_eq!(wrong(&["--health-retries=2"]), format!("spec.task.health: --health-retries {nothing}"));
    assert_eq!(wrong(&["--health-header=A=b"]), format!("spec.task.health: --health-header {nothing}"));
    assert!(wrong(&["--health-tcp=1", "--health-header=A=b"]).contains("only an HTTP check has headers"));
    assert_eq!(wrong(&["--health-interval="]), "--health-interval: is empty; leave it out for the default");
    assert!(
        wrong(&["--health-tcp=1", "--health-interval=1ms"])
            .starts_with("spec.task.health.interval: 1ms is not")
    );
    for bad in [
        &["--health-http=/", "--health-tcp=1"][..],
        &["--health-cmd=a", "--health-exec=a"],
        &["--health-tcp=0"],
        &["--health-http="],
        &["--health-cmd="],
        &["--no-health", "--health-tcp=1"],
    ] {
        assert!(service(&[&["create", "web", "--image=a"], bad].concat()).is_err(), "{bad:?}");
    }
    assert!(service(&["update", "web", "--no-health", "--health-retries=2"]).is_err());
}

#[test]
fn an_update_changes_the_health_check_that_there_is() {
    use serde_json::json;
    check(EVERY_KIND, &["--no-health"], &[("/task/health", json!(null))]);
    check(EVERY_KIND, &["--health-retries=9"], &[("/task/health/retries", json!(9))]);
    check(EVERY_KIND, &["--health-interval="], &[("/task/health/interval", json!("30s"))]);
    check(EVERY_KIND, &["--health-header-rm=host"], &[("/task/health/probe/http/headers", json!(null))]);
    let header = |value: &str| json!([{"name": "Host", "value": value}]);
    let other = header("other").as_array_mut().unwrap()[0].clone();
    let named = &["--health-header-add=Host=other"];
    check(EVERY_KIND, named, &[("/task/health/probe/http/headers", json!([other]))]);
    // Another kind of check keeps the times; an HTTP one that goes elsewhere also its headers.
    check(EVERY_KIND, &["--health-tcp=5"], &[("/task/health/probe", json!({"tcp": {"port": 5}}))]);
    let http = json!({"http": {"port": 81, "path": "/x", "headers": header("shop.example")}});
    check(EVERY_KIND, &["--health-http=:81/x"], &[("/task/health/probe", http)]);
    // The port is one of those that the update leaves.
    let ports = ["--publish-rm=8080", "--publish-on-rm=node.labels.edge == true", "--health-http=/y"];
    let moved = changed(&created(EVERY_KIND).unwrap(), &ports).unwrap();
    assert_eq!(health(&moved)["probe"]["http"]["port"], 443);
    let none = created(&[]).unwrap();
    assert_eq!(changed(&none, &["--no-health"]).unwrap(), none);
    assert!(changed(&none, &["--health-timeout=1s"]).is_err());
    assert_eq!(changed(&none, &["--health-timeout="]).unwrap(), none);
}
