//! Included files.

use serde_json::json as value;

use crate::{json, lines, load_with, loaded, service};

#[test]
fn included_file_has_its_own_directory_and_variables() {
    let files = [
        ("compose.yaml", "include: [lib/db.yaml]\nservices: {web: {image: 'web:$TAG', depends_on: [db]}}"),
        (".env", "TAG=1\nBOTH=outer"),
        ("lib/db.yaml", "services: {db: {image: 'db:$TAG-$BOTH-$OWN', env_file: db.env}}\nvolumes: {data: }"),
        ("lib/.env", "TAG=2\nOWN=own\nBOTH=inner"),
        ("lib/db.env", "A=1"),
    ];
    let project = loaded(&files);
    assert_eq!(service(&project, "web")["image"], "web:1");
    assert_eq!(service(&project, "db")["image"], "db:1-outer-own");
    assert_eq!(service(&project, "db")["environment"], value!({"A": "1"}));
    assert_eq!(json(&project)["volumes"], value!({"data": {}}));
    assert!(json(&project)["include"].is_null());
}

#[test]
fn long_form_merges_files_with_directory_and_env_file() {
    let include = "include: [{path: [lib/a.yaml, lib/b.yaml], project_directory: ., env_file: x.env}]";
    let files = [
        ("compose.yaml", include),
        ("x.env", "TAG=3"),
        ("lib/a.yaml", "services: {a: {image: 'a:$TAG', env_file: a.env}}"),
        ("lib/b.yaml", "services: {a: {user: root}}"),
        ("a.env", "A=1"),
    ];
    let expected = value!({"image": "a:3", "user": "root", "environment": {"A": "1"}});
    assert_eq!(service(&loaded(&files), "a"), expected);
}

#[test]
fn the_same_file_may_be_included_twice_but_names_do_not_conflict() {
    let shared = ("d.yaml", "services: {d: {image: d}}");
    let twice = [
        ("compose.yaml", "include: [b.yaml, c.yaml]\nservices: {a: {image: a}}"),
        ("b.yaml", "include: [d.yaml]\nservices: {b: {image: b}}"),
        ("c.yaml", "include: [d.yaml]\nservices: {c: {image: c}}"),
        shared,
    ];
    assert_eq!(json(&loaded(&twice))["services"].as_object().unwrap().len(), 4);
    let conflict = [("compose.yaml", "include: [d.yaml]\nservices: {d: {image: a}}"), shared];
    let found = lines(&loaded(&conflict).unwrap_err());
    let expected =
        "d.yaml:1:12: services.d: is defined at compose.yaml:2:12 as well; give one of them another name";
    assert!(found.contains(expected), "{found}");
}

#[test]
fn wrong_include_is_named() {
    let circle = [
        ("compose.yaml", "services: {a: {image: a}}\ninclude:\n- b.yaml"),
        ("b.yaml", "include: [compose.yaml]"),
    ];
    let found = lines(&loaded(&circle).unwrap_err());
    assert!(found.contains("b.yaml:1:11: include[0]: compose.yaml includes itself"), "{found}");
    let found = lines(&loaded(&[("compose.yaml", "include:\n- x.yaml")]).unwrap_err());
    assert!(found.contains("compose.yaml:2:3: there is no file x.yaml"), "{found}");
    let found = lines(&loaded(&[("compose.yaml", "include:\n- {env_file: x}")]).unwrap_err());
    assert!(
        found.contains("compose.yaml:2:3: include[0]: the path of the included file is missing"),
        "{found}"
    );
}

#[test]
fn files_that_include_each_other_on_many_ways_end_with_an_error() {
    let names: Vec<String> = (0..20).map(|i| format!("{i}.yaml")).collect();
    let texts: Vec<String> = (1..=20).map(|i| format!("include: [{i}.yaml, ./{i}.yaml]")).collect();
    let mut files: Vec<(&str, &str)> = vec![("compose.yaml", "include: [0.yaml]")];
    files.extend(names.iter().zip(&texts).map(|(name, text)| (name.as_str(), text.as_str())));
    files.push(("20.yaml", "services: {a: {image: a}}"));
    let found = lines(&load_with(&files, |_| {}).unwrap_err());
    assert!(found.contains("the project has more than 1000 files"), "{found}");
}
