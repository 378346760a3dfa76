//! `warren secret ...` and `warren config ...`: what is kept, what is shown, and what is never shown.

use serde_json::{Value, json};

use crate::user::CliUser;

const SECRET: &str = "hunter2-and-more";

/// A file that holds this.
fn file(person: &CliUser, name: &str, bytes: &[u8]) -> String {
    let path = person.path(name);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

fn json(person: &CliUser, arguments: &[&str]) -> Value {
    serde_json::from_str(&person.ok(&[arguments, &["-o", "json"]].concat())).unwrap()
}

#[test]
fn secret_is_stored_updated_and_never_shown() {
    let person = CliUser::new();
    let path = file(&person, "db", SECRET.as_bytes());
    let ran = person.warren(&["secret", "create", "db", &path, "--label=app=shop"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "secret db created\n"), "{ran:?}");
    let id = ran.stdout.trim();
    assert_eq!((id.len(), person.manager.secret_bytes("db")), (25, Some(SECRET.into())));
    let mut output = vec![ran.stdout.clone(), ran.stderr];

    person.ok(&["service", "create", "web", "--image=runs", "--secret=db:/etc/db,mode=0440"]);
    let new = format!("{SECRET}-new");
    let ran = person.warren_with(&["secret", "update", "db", "-", "-o", "json"], new.as_bytes());
    assert_eq!(
        ran.stderr, "secret db updated: version 2; the tasks of service web are replaced\n",
        "{ran:?}"
    );
    assert_eq!(person.manager.secret_bytes("db"), Some(new.clone().into()));
    let again = person.warren_with(&["secret", "update", "db", "-"], new.as_bytes());
    assert_eq!(again.stderr, "secret db is unchanged: version 2\n", "{again:?}");
    output.extend([ran.stdout, ran.stderr]);

    let shown = json(&person, &["secret", "inspect", "db"]);
    assert_eq!(shown["labels"], json!({"app": "shop"}));
    assert_eq!(
        (&shown["versionNumber"], &shown["storedVersions"], &shown["services"]),
        (&json!(2), &json!([1, 2]), &json!(["web"]))
    );
    assert_eq!((shown.get("data"), shown.get("stringData")), (None, None));
    let listed = person.ok(&["secret", "ls"]);
    let row: Vec<&str> = listed.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((&row[..3], row.last()), (&["db", "2", "20B"][..], Some(&&id[..10])), "{listed}");
    output.extend([shown.to_string(), listed, person.ok(&["secret", "ls", "-o", "wide"])]);
    output.push(person.ok(&["task", "inspect", "web.1"]));

    let refused = person.fails(4, &["secret", "rm", "db"]);
    let end = "error: secret db was not removed\n  why: secret db is used by web\n  \
               try: unmount it first: `warren service update SERVICE --secret-rm db`\n";
    assert_eq!(refused, end);
    person.ok(&["service", "rm", "web"]);
    assert_eq!(person.ok(&["secret", "rm", id]), "db\n");
    output.push(refused);
    assert!(output.iter().all(|text| !text.contains("hunter2")), "{output:?}");
    person.fails(3, &["secret", "inspect", "db"]);
    assert_eq!(person.ok(&["secret", "ls", "-o", "json"]), "[]\n");
}

#[test]
fn a_config_is_shown() {
    let person = CliUser::new();
    let ran = person.warren_with(&["config", "create", "site", "-"], b"port: 80\nname: a\n");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "config site created\n"), "{ran:?}");
    assert!(person.ok(&["config", "inspect", "site"]).ends_with("stringData: |\n  port: 80\n  name: a\n"));
    let path = file(&person, "logo", b"\x89PNG\xff");
    person.ok(&["config", "create", "logo", &path]);
    let both = json(&person, &["config", "inspect", "logo", "site"]);
    assert_eq!(
        (&both[0]["data"], &both[1]["stringData"]),
        (&json!("iVBOR/8="), &json!("port: 80\nname: a\n"))
    );
    assert_eq!(json(&person, &["config", "ls"]).as_array().unwrap().len(), 2);
    // Names are of a kind.
    person.fails(3, &["secret", "inspect", "site"]);
    person.ok(&["secret", "create", "site", &path]);
    assert_eq!(person.ok(&["config", "rm", "site", "logo"]), "site\nlogo\n");
}

#[test]
fn invalid_secret_is_refused_locally() {
    let person = CliUser::new();
    let large = file(&person, "large", &vec![7; (1 << 20) + 1]);
    let empty = file(&person, "empty", b"");
    let most = file(&person, "most", &vec![7; 1 << 20]);
    person.ok(&["secret", "create", "most", &most]);
    let output = person.fails(2, &["secret", "create", "db", &large]);
    let expected = format!(
        "error: secret db was not created\n  why: {large}: has more than 1048576 bytes (1 MiB), the maximum of \
         a secret\n  try: store larger data in a volume or in the image\n"
    );
    assert_eq!(output, expected);
    let ran = person.warren_with(&["secret", "update", "most", "-"], &vec![7; (1 << 20) + 1]);
    assert!(ran.code == 2 && ran.stderr.contains("why: standard input: has more than"), "{ran:?}");
    let text = person.fails(2, &["config", "create", "db", &empty]);
    assert!(text.contains("is empty; a config has at least one byte"), "{text}");
    let printed = person.fails(3, &["secret", "create", "db", "/nowhere/db"]);
    assert!(printed.contains("why: /nowhere/db: there is no such file\n"), "{printed}");
    person.fails(2, &["secret", "create", "db", person.path("").to_str().unwrap()]);
    person.fails(3, &["secret", "update", "nobody", &most]);
    let said = person.fails(4, &["secret", "create", "most", &most]);
    let hint = "try: choose another name, or store a new version with `warren secret update most FILE`\n";
    assert!(said.contains("why: there is a secret most already\n") && said.ends_with(hint), "{said}");
    let said = person.fails(2, &["secret", "create", "a b", &most]);
    assert!(said.contains("\"a b\" is not a name (1 to 64 letters"), "{said}");
    let said = person.fails(2, &["secret", "create", "db", &most, "--label=a=1", "--label=a=2"]);
    assert!(said.contains("labels[\"a\"]: is given twice"), "{said}");
    assert_eq!(person.manager.secret_bytes("db"), None);
}

/// Somebody who types the secret itself does not see it.
#[test]
fn typed_secret_is_not_echoed() {
    let person = CliUser::new();
    let typed = person.type_to(&["secret", "create", "db", "-"], "end with Ctrl-D:", b"one\nhunter2\n\x04");
    assert_eq!(
        (typed.code, person.manager.secret_bytes("db")),
        (0, Some(b"one\nhunter2\n".to_vec())),
        "{typed:?}"
    );
    assert!(!typed.screen.contains("hunter2") && typed.is_echo_on, "{typed:?}");
}
