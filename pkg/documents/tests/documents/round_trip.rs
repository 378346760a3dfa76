//! Every spec is a document that means the same, and matches the schema; a field that is added to a type is in both.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};
use warren_documents::{
    DocumentKind, SourceText, admission_policy_document, document, read_admission_policy, schema,
    service_document,
};
use warren_testkit::soak;
use warren_types::strategies::service_specs;
use warren_types::{
    AdmissionPolicy, AdmissionRules, Bytes, Limits, MilliCpu, ServiceSpec, SignatureKey, SignatureRule,
};

use crate::read;

/// Fields whose keys users choose.
const FREE_MAPPINGS: [&str; 4] = ["labels", "containerLabels", "sysctls", "options"];

#[track_caller]
fn parsed(text: &str) -> ServiceSpec {
    let found = read(text).unwrap_or_else(|problems| panic!("{problems:?}\n{text}"));
    found.objects.services[0].spec.clone()
}

/// Paths of all mappings of a document whose fields are fixed.
fn mappings(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            if !FREE_MAPPINGS.iter().any(|free| path.ends_with(free)) {
                found.push(path.to_owned());
            }
            fields.iter().for_each(|(key, value)| mappings(value, &format!("{path}/{key}"), found));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, value)| mappings(value, &format!("{path}/{i}"), found));
        }
        _ => {}
    }
}

/// Whether the value matches the schema, of the words that the generator uses.
fn matches(value: &Value, schema: &Value) -> Result<(), String> {
    let wrong = |why: String| Err(format!("{value}: {why}"));
    let Some(rules) = schema.as_object() else { return wrong("the schema is no object".to_owned()) };
    for (rule, content) in rules {
        match rule.as_str() {
            "type" => {
                let allowed: Vec<&str> = match content {
                    Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
                    one => one.as_str().into_iter().collect(),
                };
                let found = match value {
                    Value::Null => "null",
                    Value::Bool(_) => "boolean",
                    Value::Number(_) if allowed.contains(&"integer") => "integer",
                    Value::Number(_) => "number",
                    Value::String(_) => "string",
                    Value::Array(_) => "array",
                    Value::Object(_) => "object",
                };
                if !allowed.contains(&found) {
                    return wrong(format!("is {found}, not {allowed:?}"));
                }
            }
            "const" if value != content => return wrong(format!("is not {content}")),
            "enum" if !content.as_array().unwrap().contains(value) => {
                return wrong(format!("is none of {content}"));
            }
            "minimum" if value.as_f64() < content.as_f64() => return wrong(format!("is below {content}")),
            "maximum" if value.as_f64() > content.as_f64() => return wrong(format!("is above {content}")),
            "required" => {
                let missing =
                    content.as_array().unwrap().iter().find(|key| value.get(key.as_str().unwrap()).is_none());
                if let Some(missing) = missing {
                    return wrong(format!("{missing} is missing"));
                }
            }
            "items" => value.as_array().into_iter().flatten().try_for_each(|item| matches(item, content))?,
            "oneOf" => {
                let choices = content.as_array().unwrap();
                let fit = choices.iter().filter(|choice| matches(value, choice).is_ok()).count();
                if fit != 1 {
                    return wrong(format!("{fit} choices match"));
                }
            }
            "additionalProperties" => {
                let known = rules.get("properties").and_then(Value::as_object);
                let other = value.as_object().into_iter().flatten();
                let mut other = other.filter(|(key, _)| known.is_none_or(|known| !known.contains_key(*key)));
                match content {
                    Value::Bool(false) => {
                        if let Some((key, _)) = other.next() {
                            return wrong(format!("{key} is not known"));
                        }
                    }
                    content => other.try_for_each(|(_, value)| matches(value, content))?,
                }
            }
            "properties" => {
                for (key, schema) in content.as_object().unwrap() {
                    value.get(key).map_or(Ok(()), |value| matches(value, schema))?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(soak::count(32, 500) as u32))]

    #[test]
    fn document_of_a_spec_means_the_same(spec in service_specs()) {
        let document = service_document(&spec);
        prop_assert_eq!(parsed(&serde_saphyr::to_string(&document).unwrap()), spec.clone());
        let json = serde_json::to_string_pretty(&document).unwrap();
        // JSON may have control characters that YAML must not have; they are refused.
        if !json.chars().any(|letter| letter.is_control() && letter != '\n') {
            prop_assert_eq!(parsed(&json), spec);
        }
        let matched = matches(&document, &SCHEMA);
        prop_assert!(matched.is_ok(), "{}\n{}", matched.unwrap_err(), of_service());
    }

    #[test]
    fn unknown_field_is_refused_everywhere(spec in service_specs()) {
        let document = service_document(&spec);
        let mut paths = Vec::new();
        mappings(&document, "", &mut paths);
        for path in paths {
            let mut changed = document.clone();
            changed.pointer_mut(&path).unwrap()["zzUnknown"] = json!(1);
            let found = read(&serde_saphyr::to_string(&changed).unwrap());
            prop_assert!(found.is_err(), "{}/zzUnknown is accepted", path);
            prop_assert!(matches(&changed, of_service()).is_err(), "the schema accepts {}/zzUnknown", path);
        }
    }

    #[test]
    fn schema_requires_what_the_reader_requires(spec in service_specs()) {
        let document = service_document(&spec);
        let mut paths = Vec::new();
        mappings(&document["spec"], "/spec", &mut paths);
        for path in paths {
            let fields = document.pointer(&path).unwrap().as_object().unwrap();
            for field in fields.keys() {
                let mut changed = document.clone();
                changed.pointer_mut(&path).unwrap().as_object_mut().unwrap().remove(field);
                let missing = format!(": {field} is missing; give it");
                let problems = read(&serde_saphyr::to_string(&changed).unwrap()).err().unwrap_or_default();
                let is_missing = problems.iter().any(|problem| problem.ends_with(&missing));
                let is_variant = problems.iter().any(|problem| problem.contains("give one of"));
                let is_refused = matches(&changed, of_service()).is_err();
                prop_assert_eq!(is_missing || is_variant, is_refused, "{}/{}: {:?}", path, field, problems);
            }
        }
    }
}

/// Made once, not for each of thousands of changed documents.
static SCHEMA: LazyLock<Value> = LazyLock::new(schema);

fn of_service() -> &'static Value {
    let kind = json!(DocumentKind::Service.as_str());
    let mut kinds = SCHEMA["oneOf"].as_array().unwrap().iter();
    kinds.find(|one| one["properties"]["kind"]["const"] == kind).unwrap()
}

#[test]
fn schema_has_every_field_of_a_spec() {
    let fields = |path: &str| -> BTreeSet<String> {
        of_service().pointer(path).unwrap().as_object().unwrap().keys().cloned().collect()
    };
    let spec = fields("/properties/spec/properties");
    assert!(spec.contains("replaceAfter") && !spec.contains("name") && !spec.contains("labels"), "{spec:?}");
    let task = fields("/properties/spec/properties/task/properties");
    assert!(task.contains("image") && task.contains("allowMetadata"), "{task:?}");
    let probe = of_service();
    let probe =
        probe.pointer("/properties/spec/properties/task/properties/health/properties/probe/oneOf").unwrap();
    assert_eq!(probe.as_array().unwrap().len(), 3);
    assert_eq!(
        probe[1]["properties"]["tcp"]["properties"]["port"],
        json!({"type": "integer", "minimum": 0, "maximum": 65535})
    );
}

#[test]
fn other_kinds_match_the_schema() {
    let labels = std::collections::BTreeMap::from([("a".to_owned(), "b".to_owned())]);
    for kind in DocumentKind::ALL.into_iter().filter(|kind| *kind != DocumentKind::Service) {
        let document = document(kind, "a", &labels, &json!({}));
        assert_eq!(matches(&document, &schema()), Ok(()), "{kind:?}");
        assert_eq!(read(&document.to_string()).unwrap().names[0].kind, kind);
    }
    let node = json!({"apiVersion": "warren.io/v1", "kind": "Node", "metadata": {"name": "n"},
        "spec": {"availability": "drain", "taints": ["a:NoSchedule"]}});
    assert_eq!(matches(&node, &schema()), Ok(()));
    let mut wrong = node;
    wrong["spec"]["availability"] = json!("of");
    assert!(matches(&wrong, &schema()).is_err() && read(&wrong.to_string()).is_err());
}

#[test]
fn admission_policy_is_a_document_that_means_the_same() {
    let operator = AdmissionRules {
        privileged: true,
        host_binds: vec!["/srv".to_owned()],
        cap_add: vec!["NET_ADMIN".parse().unwrap()],
        min_oom_score_adj: -5,
        limits: Limits { cpu: Some(MilliCpu(1500)), memory: Some(Bytes(1 << 30)), pids: Some(100) },
        max_replicas: Some(3),
        ..AdmissionRules::default()
    };
    let keys = vec![SignatureKey::EcdsaP256([4; 65]), SignatureKey::Ed25519([1; 32])];
    let signatures = vec![SignatureRule { registry: "ghcr.io/acme".to_owned(), keys }];
    for policy in [AdmissionPolicy::default(), AdmissionPolicy { operator, signatures }] {
        let document = admission_policy_document(&policy);
        for text in [serde_saphyr::to_string(&document).unwrap(), document.to_string()] {
            let read = read_admission_policy(SourceText { name: "a.yaml", text: &text });
            assert_eq!(read.unwrap(), policy, "{text}");
        }
        assert_eq!(matches(&document, &schema()), Ok(()));
        let mut wrong = document.clone();
        wrong["spec"]["signatures"] = json!([{"zzUnknown": 1}]);
        assert!(matches(&wrong, &schema()).is_err());
        let mut wrong = document;
        wrong["spec"]["operator"]["zzUnknown"] = json!(1);
        assert!(matches(&wrong, &schema()).is_err());
    }
}
