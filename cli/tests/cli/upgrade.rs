//! `warren upgrade`: what is refused before anything is sent.

use crate::user::CliUser;

/// A program for the machine of this test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_warren");

#[test]
fn file_that_is_no_program_is_a_usage_error() {
    let person = CliUser::new();
    let output = person.fails(2, &["upgrade", "/etc/passwd"]);
    assert!(
        output.contains("nothing was upgraded\n  why: /etc/passwd: is not an executable for Linux"),
        "{output}"
    );
    person.fails(3, &["upgrade", "/nowhere/warren"]);
    person.fails(2, &["upgrade"]);
}

#[test]
fn machines_are_checked_before_the_first_upgrade() {
    let person = CliUser::new();
    let output = person.fails(3, &["upgrade", PROGRAM, "--node", "nobody"]);
    assert!(output.contains("why: no node and no manager is called nobody"), "{output}");
    // It has no node in this cluster.
    let output = person.fails(4, &["upgrade", PROGRAM]);
    assert!(output.contains("error: the upgrade stopped at m"), "{output}");
    assert!(output.contains("has no node (--manager-only)"), "{output}");
    assert!(output.contains("not changed: "), "{output}");
}

#[test]
fn refusal_of_a_machine_says_where_the_upgrade_stands() {
    let person = CliUser::new();
    let output = person.fails(1, &["upgrade", PROGRAM, "--node", "node-2", "--node", "node-1"]);
    assert!(output.contains("for node-1, node-2\n"), "{output}");
    assert!(output.contains("error: the upgrade stopped at node-1"), "{output}");
    assert!(output.contains("this manager upgrades nothing\n       not changed: node-2\n"), "{output}");
}
