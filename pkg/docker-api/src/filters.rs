//! The filters of lists and events: `{"name": ["web"]}`, or `{"name": {"web": true}}` of newer clients.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::docker_error::DockerError;

/// Accepted values by name. A filter that is absent accepts all.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Filters(BTreeMap<String, BTreeSet<String>>);

impl Filters {
    /// Reads the filters of a query. Names outside of `known` are refused.
    pub fn parse(text: &str, known: &[&str]) -> Result<Self, DockerError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let wrong = || DockerError::invalid("invalid filters: give JSON like {\"name\": [\"web\"]}");
        let parsed: BTreeMap<String, Value> = serde_json::from_str(text).map_err(|_| wrong())?;
        let mut filters = BTreeMap::new();
        for (name, values) in parsed {
            if !known.contains(&name.as_str()) {
                let (name, known) = (name.chars().take(64).collect::<String>(), known.join(", "));
                return Err(DockerError::invalid(format!("invalid filter '{name}'; there are {known}")));
            }
            let values: Option<BTreeSet<String>> = match values {
                Value::Array(values) => {
                    values.into_iter().map(|value| Some(value.as_str()?.to_owned())).collect()
                }
                Value::Object(values) => Some(values.into_iter().map(|(value, _)| value).collect()),
                _ => None,
            };
            filters.insert(name, values.ok_or_else(wrong)?);
        }
        Ok(Self(filters))
    }

    /// The values of a filter; `None` if it is absent.
    pub fn values(&self, name: &str) -> Option<&BTreeSet<String>> {
        self.0.get(name).filter(|values| !values.is_empty())
    }

    /// Whether one of the values of the filter is accepted by `matches`, or the filter is absent.
    pub fn any(&self, name: &str, matches: impl Fn(&str) -> bool) -> bool {
        self.values(name).is_none_or(|values| values.iter().any(|value| matches(value)))
    }

    /// Whether the id, or a prefix of it, is accepted.
    pub fn id(&self, id: &str) -> bool {
        self.any("id", |wanted| id.starts_with(wanted))
    }

    /// Whether the name, or a prefix of it, is accepted, as in lists of a swarm.
    pub fn name_prefix(&self, name: &str) -> bool {
        self.any("name", |wanted| name.starts_with(wanted))
    }

    /// Whether a part of the name is accepted, as in lists of objects of one node. `^` and `$` stand for its ends.
    pub fn name_part(&self, name: &str) -> bool {
        self.any("name", |wanted| match (wanted.strip_prefix('^'), wanted.strip_suffix('$')) {
            (Some(_), Some(_)) => wanted.get(1..wanted.len() - 1) == Some(name),
            (Some(start), None) => name.starts_with(start),
            (None, Some(end)) => name.ends_with(end),
            (None, None) => name.contains(wanted),
        })
    }

    /// Whether all labels of a filter are there: `KEY` or `KEY=VALUE`.
    pub fn labels<'a>(&self, name: &str, get: impl Fn(&str) -> Option<&'a String>) -> bool {
        let has = |wanted: &String| match wanted.split_once('=') {
            Some((key, value)) => get(key).is_some_and(|found| found == value),
            None => get(wanted).is_some(),
        };
        self.values(name).is_none_or(|values| values.iter().all(has))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        for text in [r#"{"name":["web","db"]}"#, r#"{"name":{"web":true,"db":true}}"#] {
            let filters = Filters::parse(text, &["name"]).unwrap();
            assert!(filters.name_prefix("web-1") && filters.name_prefix("db") && !filters.name_prefix("we"));
            assert!(filters.any("id", |_| false), "absent filters accept all");
        }
        assert_eq!(Filters::parse("{}", &[]).unwrap(), Filters::default());
        let unknown = Filters::parse(r#"{"colour":["red"]}"#, &["id", "name"]).unwrap_err();
        assert_eq!(unknown.message, "invalid filter 'colour'; there are id, name");
        for wrong in ["[]", "{", r#"{"name":"web"}"#, r#"{"name":[1]}"#] {
            assert!(Filters::parse(wrong, &["name"]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn labels_must_all_match() {
        let labels =
            BTreeMap::from([("tier".to_owned(), "front".to_owned()), ("x".to_owned(), String::new())]);
        let check =
            |text: &str| Filters::parse(text, &["label"]).unwrap().labels("label", |key| labels.get(key));
        assert!(check("{}") && check(r#"{"label":["tier"]}"#) && check(r#"{"label":["tier=front","x="]}"#));
        assert!(!check(r#"{"label":["tier=back"]}"#) && !check(r#"{"label":["tier","y"]}"#));
    }
}
