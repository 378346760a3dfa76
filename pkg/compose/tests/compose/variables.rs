//! Variables of the environment and of env files.

use serde_json::json as value;

use crate::{lines, load_with, loaded, service};

#[test]
fn environment_has_precedence_over_env_files() {
    let files = [
        ("compose.yaml", "services: {web: {image: '${NAME}:${TAG:-none}', environment: {A: , B: }}}"),
        (".env", "NAME=file\nTAG=7\nA=a"),
        ("other.env", "NAME=other"),
    ];
    let check = |expected: &str, change: &dyn Fn(&mut warren_compose::ProjectSource)| {
        let project = load_with(&files, change);
        assert_eq!(service(&project, "web")["image"], expected);
        service(&project, "web")["environment"].clone()
    };
    assert_eq!(check("file:7", &|_| {}), value!({"A": "a"}));
    check("process:7", &|source| source.variables = [("NAME".to_owned(), "process".to_owned())].into());
    check("other:none", &|source| source.env_files = vec!["other.env".into()]);
}

#[test]
fn values_of_every_type_may_be_variables_but_keys_are_not() {
    let text = "
services:
  web:
    image: web
    init: $YES
    scale: ${N}
    user: $N
    ports: ['${N}:80']
    labels: {$N: '$N'}
";
    let project = load_with(&[("compose.yaml", text)], |source| {
        source.variables = [("N", "3"), ("YES", "true")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    });
    assert_eq!(
        service(&project, "web"),
        value!({"image": "web", "init": true, "scale": 3, "user": "3", "labels": {"$N": "3"},
                "ports": [{"target": 80, "published": "3", "protocol": "tcp"}]})
    );
}

#[test]
fn missing_variable_is_a_warning_and_required_one_an_error() {
    let project = loaded(&[("compose.yaml", "services:\n  web: {image: web, user: \"x$NONE\"}")]).unwrap();
    let warnings = lines(&project.warnings);
    let expected = "compose.yaml:2:27: services.web.user: the variable NONE is not set, so it is empty";
    assert!(warnings.starts_with(expected), "{warnings}");
    let found = crate::problems("services:\n  web:\n    image: ${TAG:?give the tag}\n");
    assert_eq!(
        found,
        "compose.yaml:3:12: services.web.image: the variable TAG is required but not set: give the tag\n"
    );
}

#[test]
fn env_files_of_services_are_read_in_order() {
    let files = [
        (
            "compose.yaml",
            "services: {web: {image: x, env_file: [a.env, {path: b.env}, {path: c.env, required: false}, \
             {path: d.env, format: raw}], environment: {C: c}, label_file: e.labels, labels: {l: own}}}",
        ),
        ("a.env", "A=1\nB=1\nC=1\nOUT"),
        ("b.env", "B='2'\nD=$VALUE"),
        ("d.env", "E='$VALUE'"),
        ("e.labels", "l=1\nm=2"),
    ];
    let project =
        load_with(&files, |source| source.variables = [("VALUE".to_owned(), "v".to_owned())].into());
    assert_eq!(
        service(&project, "web")["environment"],
        value!({"A": "1", "B": "2", "C": "c", "D": "v", "E": "'$$VALUE'"})
    );
    assert_eq!(service(&project, "web")["labels"], value!({"l": "own", "m": "2"}));
    let found = crate::problems("services:\n  web:\n    image: x\n    env_file: none.env\n");
    let expected =
        "compose.yaml:4:15: services.web.env_file: there is no file none.env; create it, or give `required:";
    assert!(found.contains(expected), "{found}");
}
