//! Merges canonical trees by the rules of the specification.

use crate::schema::{MergeRule, SchemaNode, ValueForm};
use crate::yaml::{MergeMode, YamlEntry, YamlMap, YamlNode, YamlValue};

/// A tree with the values of `base` and of `over`, which has precedence.
pub fn merged(base: YamlNode, over: YamlNode, schema: Option<&SchemaNode>) -> YamlNode {
    match (base.merge, over.merge) {
        (_, MergeMode::Reset | MergeMode::Override) => return over,
        // What the base removes or replaces must also be removed or replaced in what lies below it.
        (MergeMode::Reset, MergeMode::Merge) if over.is_null() => return base,
        (MergeMode::Reset, MergeMode::Merge) => return YamlNode { merge: MergeMode::Override, ..over },
        (MergeMode::Merge | MergeMode::Override, MergeMode::Merge) => {}
    }
    let form = schema.map_or(ValueForm::Unchecked, SchemaNode::form);
    let rule = schema.and_then(|schema| schema.key).map_or(MergeRule::ByForm, |key| key.merge);
    if over.is_null() {
        return base;
    }
    let replaces = match rule {
        MergeRule::Replace => true,
        MergeRule::SameKey(key) => {
            let value = |node: &YamlNode| node.get(key).and_then(YamlNode::as_text).map(str::to_owned);
            value(&over).is_some_and(|new| value(&base).is_some_and(|old| old != new))
        }
        MergeRule::ByForm | MergeRule::ByKeys(_) => false,
    };
    let merge = base.merge;
    let value = match (base.value, over.value) {
        (_, value) if replaces => value,
        (YamlValue::Map(base), YamlValue::Map(over)) => YamlValue::Map(merged_maps(base, over, form, schema)),
        (YamlValue::List(base), YamlValue::List(over)) => YamlValue::List(match rule {
            MergeRule::ByKeys(keys) => without_repeated_keys(base.into_iter().chain(over), keys),
            _ => appended(base, over, form),
        }),
        (_, value) => value,
    };
    YamlNode { value, at: over.at, merge }
}

fn merged_maps(base: YamlMap, over: YamlMap, form: ValueForm, schema: Option<&SchemaNode>) -> YamlMap {
    let mut result = base;
    for (key, entry) in over {
        // The values of pairs and hosts are whole, also null.
        let is_whole = matches!(form, ValueForm::Pairs | ValueForm::Hosts);
        let YamlEntry { key_at, node } = entry;
        let node = match result.remove(&key) {
            Some(earlier) if !is_whole => {
                merged(earlier.node, node, schema.and_then(|schema| schema.child(&key)))
            }
            _ => node,
        };
        result.insert(key, YamlEntry { key_at, node });
    }
    result
}

/// Lists of texts have each text once; where one text may stand for a list, they are as given.
fn appended(base: Vec<YamlNode>, over: Vec<YamlNode>, form: ValueForm) -> Vec<YamlNode> {
    let mut all = base;
    if !matches!(form, ValueForm::TextList | ValueForm::SecurityOptions) {
        all.extend(over);
        return all;
    }
    let mut seen = std::collections::BTreeSet::new();
    all.extend(over);
    all.retain(|item| item.as_text().is_none_or(|text| seen.insert(text.to_owned())));
    all
}

/// Each item at its first place, with its last value.
fn without_repeated_keys(items: impl Iterator<Item = YamlNode>, keys: &[&str]) -> Vec<YamlNode> {
    let mut result: Vec<YamlNode> = Vec::new();
    let mut places = std::collections::BTreeMap::new();
    for item in items {
        let value = |key: &&str| item.get(key).and_then(YamlNode::as_text).map(str::to_owned);
        let mut key: Vec<Option<String>> = keys.iter().map(value).collect();
        if keys == ["target"] && key == [None] {
            key = vec![value(&"source")];
        }
        match places.get(&key) {
            Some(place) => result[*place] = item,
            None => {
                places.insert(key, result.len());
                result.push(item);
            }
        }
    }
    result
}

/// Removes what is reset, missing values, and the marks of merging. Names without a value get an empty mapping; in
/// pairs null stays, since it is a value of the environment.
pub fn completed(node: YamlNode, schema: Option<&SchemaNode>) -> YamlNode {
    let YamlNode { value, at, .. } = node;
    let form = schema.map_or(ValueForm::Unchecked, SchemaNode::form);
    let value = match value {
        YamlValue::Map(map) => {
            let keep = |entry: &YamlEntry| {
                let is_null = entry.node.is_null() && !matches!(form, ValueForm::Pairs | ValueForm::MapOf);
                entry.node.merge != MergeMode::Reset && (!is_null || form == ValueForm::Unchecked)
            };
            let complete = |(key, YamlEntry { key_at, node }): (std::sync::Arc<str>, YamlEntry)| {
                let inner = schema.and_then(|schema| schema.child(&key));
                let node = match inner.map(SchemaNode::form) {
                    Some(ValueForm::Map) if form == ValueForm::MapOf && node.is_null() => {
                        YamlNode::new(YamlValue::Map(YamlMap::new()), &node.at)
                    }
                    _ => completed(node, inner),
                };
                (key, YamlEntry { key_at, node })
            };
            YamlValue::Map(map.into_iter().filter(|(_, entry)| keep(entry)).map(complete).collect())
        }
        YamlValue::List(items) => {
            let inner = schema.and_then(|schema| schema.items.as_deref());
            let items = items.into_iter().filter(|item| item.merge != MergeMode::Reset);
            YamlValue::List(items.map(|item| completed(item, inner)).collect())
        }
        scalar => scalar,
    };
    YamlNode { value, at, merge: MergeMode::Merge }
}
