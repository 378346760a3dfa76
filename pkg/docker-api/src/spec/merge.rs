//! Keeps what Docker cannot say of a service in an update.

use serde_json::{Map, Value};
use warren_types::ServiceSpec;

/// Parts of a spec that are merged field by field. All others are values as a whole.
const STRUCTS: [&str; 8] =
    ["task", "placement", "update", "rollback", "restart", "limits", "reservations", "dns"];

/// `sent`, but with the value of `before` wherever it is as it was `shown`: `before` without what Docker cannot say.
/// Items of lists are compared one by one.
///
/// # Errors
/// The result is no spec.
pub fn merge(
    before: &ServiceSpec,
    shown: &ServiceSpec,
    sent: &ServiceSpec,
) -> Result<ServiceSpec, serde_json::Error> {
    let [before, shown, sent] = [before, shown, sent].map(serde_json::to_value);
    serde_json::from_value(merge_objects(before?, shown?, sent?))
}

fn merge_objects(before: Value, shown: Value, sent: Value) -> Value {
    let (Value::Object(mut before), Value::Object(mut shown), Value::Object(mut sent)) =
        (before, shown, sent)
    else {
        return Value::Null;
    };
    let keys: Vec<String> = before.keys().chain(sent.keys()).cloned().collect();
    let mut merged = Map::new();
    for key in keys {
        // A key that was merged already is in none of them any more.
        let values = (before.remove(&key), shown.remove(&key), sent.remove(&key));
        let value = match values {
            (before, shown, sent) if shown == sent => before,
            (before, shown, sent) if STRUCTS.contains(&key.as_str()) => {
                // A part that has only defaults is left out.
                let or_empty = |value: Option<Value>| value.unwrap_or_else(|| Map::new().into());
                Some(merge_objects(or_empty(before), or_empty(shown), or_empty(sent)))
            }
            (Some(Value::Array(before)), Some(Value::Array(shown)), Some(Value::Array(sent))) => {
                Some(merge_lists(&before, &shown, sent).into())
            }
            (_, _, sent) => sent,
        };
        if let Some(value) = value {
            merged.entry(key).or_insert(value);
        }
    }
    merged.into()
}

fn merge_lists(before: &[Value], shown: &[Value], sent: Vec<Value>) -> Vec<Value> {
    if before.len() != shown.len() {
        return sent;
    }
    let kept =
        |item: Value| shown.iter().position(|other| *other == item).map_or(item, |i| before[i].clone());
    sent.into_iter().map(kept).collect()
}
