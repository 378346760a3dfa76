//! Large projects end in bounded time and memory.

use crate::{json, loaded, problems};

#[test]
fn ten_thousand_services_in_one_chain_are_loaded() {
    let one = |i: usize| match i {
        0 => "  s0: {image: x}\n".to_owned(),
        _ => format!("  s{i}: {{image: x, depends_on: [s{}], environment: [A=1], ports: ['80']}}\n", i - 1),
    };
    let text: String = (0..10_000).map(one).collect();
    let project = loaded(&[("compose.yaml", &format!("services:\n{text}"))]);
    assert_eq!(json(&project)["services"].as_object().unwrap().len(), 10_000);
}

#[test]
fn ten_thousand_copies_of_a_large_service_end_with_a_line() {
    let labels: String = (0..1000).map(|i| format!("      l{i}: x\n")).collect();
    let base = format!("services:\n  base:\n    image: x\n    labels:\n{labels}");
    let copies: String = (0..10_000).map(|i| format!("  s{i}: {{extends: base}}\n")).collect();
    let found = problems(&(base + &copies));
    assert!(found.contains("more than 500000 values"), "{}", &found[..found.len().min(500)]);
}

#[test]
fn ranges_of_ports_and_long_variables_count() {
    let services: String =
        (0..50).map(|i| format!("  s{i}: {{image: x, ports: [{}]}}\n", "'1-256', ".repeat(20))).collect();
    let found = problems(&format!("services:\n{services}"));
    assert!(found.contains("more than 500000 values"), "{}", &found[..found.len().min(500)]);
    let files = [(
        "compose.yaml",
        format!("services: {{web: {{image: x, command: [{}]}}}}", "'$LONG', ".repeat(1000)),
    )];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let found = crate::load_with(&files, |source| {
        source.variables = [("LONG".to_owned(), "x".repeat(1 << 20))].into();
    });
    let found = crate::lines(&found.unwrap_err());
    assert!(found.contains("64 MiB of text"), "{}", &found[..found.len().min(500)]);
}

#[test]
fn ten_thousand_services_with_missing_dependencies_end_with_as_many_problems() {
    let one = |i: usize| format!("  s{i}: {{image: x, depends_on: [missing-{i}]}}\n");
    let text: String = (0..10_000).map(one).collect();
    assert_eq!(problems(&format!("services:\n{text}")).lines().count(), 10_000);
    let text: String = (0..10_000).map(|i| format!("  s{i}: {{image: x, imgae-{i}: y}}\n")).collect();
    assert_eq!(problems(&format!("services:\n{text}")).lines().count(), 10_000);
}
