//! Services that extend others.

use serde_json::json as value;

use crate::{lines, loaded, problems, service};

#[test]
fn service_is_merged_with_what_it_extends() {
    let text = "
services:
  base: {image: busybox, user: root, environment: {TZ: utc, PORT: 80}, cap_add: [A]}
  common: {extends: base, cap_add: [B]}
  cli: {extends: {service: common}, environment: [PORT=8080]}
";
    let project = loaded(&[("compose.yaml", text)]);
    assert_eq!(
        service(&project, "cli"),
        value!({"image": "busybox", "user": "root", "environment": {"TZ": "utc", "PORT": "8080"},
                "cap_add": ["A", "B"]})
    );
    assert_eq!(service(&project, "common")["cap_add"], value!(["A", "B"]));
}

#[test]
fn extended_service_of_another_file_has_the_paths_of_that_file() {
    let files = [
        (
            "compose.yaml",
            "services: {web: {extends: {file: lib/base.yaml, service: web}, volumes: ['./b:/b']}}",
        ),
        (
            "lib/base.yaml",
            "services: {web: {extends: inner, volumes: ['./a:/a'], env_file: a.env}, inner: {image: x}}",
        ),
        ("lib/a.env", "A=1"),
    ];
    let web = service(&loaded(&files), "web");
    assert_eq!(web["image"], "x");
    assert_eq!(web["environment"], value!({"A": "1"}));
    let sources: Vec<&str> =
        web["volumes"].as_array().unwrap().iter().map(|one| one["source"].as_str().unwrap()).collect();
    assert_eq!(sources, ["/app/lib/a", "/app/b"]);
}

#[test]
fn reset_and_override_reach_through_extends_and_files() {
    let text = "
services:
  base: {image: x, ports: ['1:1'], labels: {a: b}, dns: [1.1.1.1]}
  web: {extends: base, ports: !override ['2:2'], labels: !reset }
";
    let web = service(&loaded(&[("compose.yaml", text)]), "web");
    assert_eq!((web["ports"][0]["target"].as_u64(), web["ports"][1].is_null()), (Some(2), true));
    assert!(web["labels"].is_null());
    let over = "services: {base: {image: x, dns: [2.2.2.2]}, web: {extends: base, dns: !override [3.3.3.3]}}";
    let web = service(&loaded(&[("compose.yaml", text), ("compose.2.yaml", over)]), "web");
    assert_eq!(web["dns"], value!(["3.3.3.3"]));
}

#[test]
fn wrong_extends_is_named() {
    let circle = "services:\n  a: {image: x, extends: b}\n  b: {extends: c}\n  c: {extends: a}\n";
    assert!(
        problems(circle)
            .contains("compose.yaml:4:16: services.a.extends: services extend each other: a -> b -> c -> a"),
        "{}",
        problems(circle)
    );
    let missing = "services:\n  a: {extends: bse}\n  base: {image: x}\n";
    let found = problems(missing);
    let expected =
        "compose.yaml:2:16: services: there is no service \"bse\" in compose.yaml; did you mean \"base\"?";
    assert!(found.contains(expected), "{found}");
    let found = problems("services:\n  a: {extends: {file: b.yaml, service: b}}\n");
    assert!(found.contains("compose.yaml:2:16: there is no file b.yaml"), "{found}");
    let between = [
        ("compose.yaml", "services: {a: {extends: {file: b.yaml, service: b}}}"),
        ("b.yaml", "services: {b: {extends: {file: compose.yaml, service: a}}}"),
    ];
    let found = lines(&loaded(&between).unwrap_err());
    assert!(
        found.contains("b.yaml:1:25: services.a.extends: services extend each other: a -> b -> a"),
        "{found}"
    );
    let chain: String = (0..100).map(|i| format!("  s{i}: {{extends: s{}}}\n", i + 1)).collect();
    let found = problems(&format!("services:\n{chain}  s100: {{image: x}}\n"));
    assert!(found.contains("more than 64 services extend each other"), "{found}");
}
