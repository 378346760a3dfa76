//! Describes the differences between two documents.

use serde_json::Value;

/// `image nginx:1 -> nginx:2, env +A -B`: each changed field with its path. Values of
/// variables are not shown, since they may be secret.
pub fn describe_changes(old: &Value, new: &Value) -> Vec<String> {
    let mut words = Vec::new();
    compare("", old, new, &mut words);
    words
}

fn compare(path: &str, old: &Value, new: &Value, words: &mut Vec<String>) {
    match (old, new) {
        _ if old == new => {}
        (Value::Object(old_fields), Value::Object(new_fields)) => {
            let mut keys: Vec<&String> = new_fields.keys().chain(old_fields.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let of =
                    |fields: &serde_json::Map<String, Value>| fields.get(key).cloned().unwrap_or(Value::Null);
                compare(&path, &of(old_fields), &of(new_fields), words);
            }
        }
        // A command line is compared as a whole, not as a set.
        _ if is_field(path, "command") || is_field(path, "args") => {
            words.push(format!("{path} {} -> {}", text(old), text(new)))
        }
        (Value::Array(_), Value::Array(_) | Value::Null) | (Value::Null, Value::Array(_)) => {
            words.push(format!("{path} {}", items(old, new)));
        }
        // The fields are mostly defaults; `inspect` shows them all.
        (Value::Null, Value::Object(_)) if is_field(path, "health") => words.push(format!("{path} added")),
        (Value::Object(_), Value::Null) if is_field(path, "health") => words.push(format!("{path} removed")),
        (Value::Object(_), Value::Null) | (Value::Null, Value::Object(_)) => {
            let empty = Value::Object(serde_json::Map::new());
            let whole = |value: &Value| if value.is_null() { empty.clone() } else { value.clone() };
            compare(path, &whole(old), &whole(new), words);
        }
        _ => words.push(format!("{path} {} -> {}", text(old), text(new))),
    }
}

/// Whether the last part of the path is this field.
fn is_field(path: &str, field: &str) -> bool {
    path.rsplit('.').next() == Some(field)
}

/// `+A -B ~C`: added, removed, changed.
fn items(old: &Value, new: &Value) -> String {
    let (old, new) = (listed(old), listed(new));
    let same_key = |list: &[Value], item: &Value| list.iter().any(|other| key(other) == key(item));
    let came = new.iter().filter(|item| !same_key(&old, item)).map(|item| format!("+{}", key(item)));
    let went = old.iter().filter(|item| !same_key(&new, item)).map(|item| format!("-{}", key(item)));
    let other = new.iter().filter(|item| same_key(&old, item) && !old.contains(item));
    let other = other.map(|item| format!("~{}", key(item)));
    let all: Vec<String> = came.chain(went).chain(other).collect();
    if all.is_empty() { "in another order".to_owned() } else { all.join(" ") }
}

fn listed(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// Name of a list item.
fn key(item: &Value) -> String {
    let field = |name: &str| item.get(name).and_then(Value::as_str).map(str::to_owned);
    let port = || Some(format!("{}:{}", text(item.get("hostPort")?), text(item.get("containerPort")?)));
    field("name").or_else(|| field("target")).or_else(port).unwrap_or_else(|| text(item))
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(text).collect();
            format!("[{}]", items.join(" "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(old: &Value, new: &Value, expected: &str) {
        assert_eq!(describe_changes(old, new).join(", "), expected);
    }

    #[test]
    fn fields_are_named_by_their_path() {
        check(&json!({"image": "nginx:1"}), &json!({"image": "nginx:1"}), "");
        check(&json!({"image": "nginx:1"}), &json!({"image": "nginx:2"}), "image nginx:1 -> nginx:2");
        let limits = json!({"limits": {"memory": "64MiB"}, "tty": false});
        check(
            &limits,
            &json!({"limits": {"cpu": "1"}, "tty": true}),
            "limits.cpu none -> 1, limits.memory 64MiB -> none, tty false -> true",
        );
        check(&limits, &json!({"tty": false}), "limits.memory 64MiB -> none");
        check(&json!({"args": ["-c", "a"]}), &json!({"args": ["-c"]}), "args [-c a] -> [-c]");
        check(&json!({}), &json!({"command": ["sh"]}), "command none -> [sh]");
        let health = |port: u16| json!({"health": {"probe": {"tcp": {"port": port}}, "retries": 3}});
        check(&health(80), &health(81), "health.probe.tcp.port 80 -> 81");
        check(&json!({}), &health(80), "health added");
        check(&health(80), &json!({}), "health removed");
        check(&json!({"secret db": 1}), &json!({"secret db": 2}), "secret db 1 -> 2");
        check(&json!({}), &json!({"secrets": [{"source": "db", "target": "/db"}]}), "secrets +/db");
    }

    #[test]
    fn list_changes_hide_variable_values() {
        let var = |name: &str, value: &str| json!({"name": name, "value": value});
        let old = json!({"env": [var("A", "1"), var("B", "secret"), var("C", "3")]});
        check(&old, &json!({"env": [var("C", "4"), var("D", "5"), var("A", "1")]}), "env +D -B ~C");
        check(&old, &json!({}), "env -A -B -C");
        check(&json!({"capAdd": ["CHOWN"]}), &json!({"capAdd": ["KILL"]}), "capAdd +KILL -CHOWN");
        let port = |host: u16| json!({"hostPort": host, "containerPort": 80});
        check(&json!({"ports": [port(80)]}), &json!({"ports": [port(81)]}), "ports +81:80 -80:80");
        check(&json!({"groups": ["a", "b"]}), &json!({"groups": ["b", "a"]}), "groups in another order");
    }
}
