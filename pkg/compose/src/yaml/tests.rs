use serde_json::json;

use super::*;

fn parsed(text: &str) -> Result<String, String> {
    let node = parse("a.yaml", text, &mut WorkBudget::default()).map_err(|why| why.to_string())?;
    Ok(serde_json::to_string(&node).unwrap())
}

#[test]
fn scalars_have_the_types_of_yaml_1_2() {
    let text = "[a, '1', 1, -2, 0x10, 0o17, 1.5, 1e3, true, 'true', yes, ~, null, '', 22:22, !!str 5, 1.2.3]";
    let expected =
        r#"["a","1",1,-2,"0x10","0o17",1.5,1000.0,true,"true","yes",null,null,"","22:22","5","1.2.3"]"#;
    assert_eq!(parsed(text).as_deref(), Ok(expected));
    assert_eq!(parsed("").as_deref(), Ok("null"));
    assert_eq!(
        ["0440", "440", "0o440", "0x1F", "-7", "08", "1_000"].map(parse_integer),
        [Some(0o440), Some(440), Some(0o440), Some(31), Some(-7), None, None]
    );
}

#[test]
fn aliases_and_merge_keys_are_resolved() {
    let text =
        "x-a: &a {p: 1, q: 2}\nx-b: &b {q: 3, r: 4}\nm: {<<: *a, p: 9}\nn: {<<: [*a, *b]}\no: *a\n'<<': 1";
    let found: serde_json::Value = serde_json::from_str(&parsed(text).unwrap()).unwrap();
    assert_eq!((&found["<<"], &found["m"]), (&json!(1), &json!({"p": 9, "q": 2})));
    assert_eq!((&found["n"], &found["o"]), (&json!({"p": 1, "q": 2, "r": 4}), &json!({"p": 1, "q": 2})));
}

#[test]
fn error_names_line_and_column() {
    let deep = format!("{}x", "- ".repeat(MAX_DEPTH + 2));
    for (text, expected) in [
        ("a:\n  b: [1, 2", "a.yaml:2:6: is not YAML"),
        ("a: 1\n b: 2", "a.yaml:2:3: is not YAML"),
        ("a: 1\nb: 2\na: 3", "a.yaml:3:1: \"a\" is given twice; the other one is in line 1"),
        ("a: *b", "a.yaml:1:4: is not YAML"),
        ("a: &a [*a]", "a.yaml:1:8: an alias of the value that contains it"),
        ("a: 1\n---\nb: 1", "a.yaml:2:1: a second document"),
        ("[a]: 1", "a.yaml:1:1: a list or mapping cannot be a key"),
        ("? {a: 1}\n: 1", "a.yaml:1:3: a list or mapping cannot be a key"),
        ("a: !file x", "the tag !file is not known; there are !reset and !override"),
        ("a:\n  <<: 1", "a.yaml:2:3: <<: merges a number"),
        (&deep, "is nested more than 64 levels deep"),
    ] {
        let error = parsed(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn aliases_of_aliases_end_with_the_line_that_exceeds_the_budget() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..=12 {
        let last = i - 1;
        text += &format!("a{i}: &a{i} [{}]\n", vec![format!("*a{last}"); 10].join(", "));
    }
    let mut budget = WorkBudget::default();
    let error = parse("a.yaml", &text, &mut budget).unwrap_err();
    assert_eq!((error.at.line, error.message.contains("more than 500000 values")), (6, true), "{error}");
    let chain: String = (1..200).map(|i| format!("a{i}: &a{i} [*a{}]\n", i - 1)).collect();
    let error = parse("a.yaml", &format!("a0: &a0 [x]\n{chain}"), &mut WorkBudget::default()).unwrap_err();
    assert!(error.message.contains("64 levels") && error.at.line > 50, "{error}");
}

#[test]
fn work_is_proportional_to_the_text() {
    let used = |services: usize| {
        let one = |i| format!("  s{i}: {{image: a, environment: [A=1, B=2], ports: ['80']}}\n");
        let text: String = (0..services).map(one).collect();
        let mut budget = WorkBudget::default();
        parse("a.yaml", &format!("services:\n{text}"), &mut budget).unwrap();
        WorkBudget::default().nodes - budget.nodes
    };
    let (one, many) = (used(1), used(10_000));
    assert!(many <= one * 10_000, "{one} for one service, {many} for 10,000");
}

#[test]
fn large_file_ends_with_the_line_that_exceeds_the_budget() {
    let text = "- [a,a,a,a,a,a,a,a]\n".repeat(500_000);
    assert!(text.len() <= MAX_FILE_SIZE);
    let error = parse("a.yaml", &text, &mut WorkBudget::default()).unwrap_err();
    assert!(error.message.contains("more than 500000 values"), "{error}");
    assert_eq!(error.at.line, 55_556, "{error}");
    let error = parse("a.yaml", &"x".repeat(MAX_FILE_SIZE + 1), &mut WorkBudget::default()).unwrap_err();
    assert!(error.message.contains("more than 16777216"), "{error}");
}
