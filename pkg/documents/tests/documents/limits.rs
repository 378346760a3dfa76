//! Input that is large or made to grow: refused at the line that is too much, in bounded time.

use crate::read;

#[test]
fn aliases_of_aliases_are_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let before = format!("*a{}", level - 1);
        text += &format!("a{level}: &a{level} [{}]\n", vec![before; 9].join(", "));
    }
    let found = read(&text).unwrap_err();
    assert!(found.len() == 1 && found[0].contains("more than 500000 values"), "{found:?}");
}

#[test]
fn ten_megabytes_are_refused_at_the_line_that_is_too_much() {
    let network = "---\napiVersion: warren.io/v1\nkind: Network\nmetadata: {name: a}\nspec: {}\n";
    let text = network.repeat(10_000_000 / network.len());
    let found = read(&text).unwrap_err();
    assert!(found.len() == 1 && found[0].contains("more than 500000 values"), "{}", found[0]);
    let secret = "apiVersion: warren.io/v1\nkind: Secret\nmetadata: {name: a}\nspec:\n  stringData: ";
    let found = read(&format!("{secret}{}\n", "x".repeat(17 << 20))).unwrap_err();
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("more than 16777216"), "{}", found[0]);
    let deep = format!("spec: {}", "[".repeat(100_000));
    let found = read(&deep).unwrap_err();
    assert!(found[0].len() < 300, "{}", found[0]);
}
