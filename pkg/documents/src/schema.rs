//! The JSON Schema of documents, for editors. It is not written by hand: a deserializer asks each type for its shape.

use std::cell::RefCell;
use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde_json::{Map, Value, json};
use warren_types::{AdmissionPolicy, ServiceSpec};

use crate::format::{
    ADMISSION_POLICY, API_VERSION, DocumentKind, METADATA_FIELDS, Metadata, NetworkFields, NodeFields,
    SecretObjectFields, VolumeFields,
};

/// Fields without which a struct (or the variant of an enum) is not read; serde does not tell. Compared with the reader
/// by a test.
pub(crate) const REQUIRED: [(&str, &[&str]); 20] = [
    ("Metadata", &["name"]),
    ("ServiceSpec", &["task"]),
    ("replicated", &["replicas"]),
    ("TaskSpec", &["image"]),
    ("NetworkAttachment", &["network"]),
    ("PublishedPort", &["containerPort"]),
    ("EnvVar", &["name", "value"]),
    ("LifecycleHook", &["command"]),
    ("HostEntry", &["name", "address"]),
    ("Ulimit", &["name", "soft", "hard"]),
    ("Device", &["source", "target", "access"]),
    ("Mount", &["target", "source"]),
    ("bind", &["path"]),
    ("volume", &["name"]),
    ("SecretObjectMount", &["source"]),
    ("HealthCheck", &["probe"]),
    ("http", &["port", "path"]),
    ("tcp", &["port"]),
    ("exec", &["command"]),
    ("HttpHeader", &["name", "value"]),
];

/// The schema of a file with one document.
pub fn schema() -> Value {
    let kinds: Vec<Value> = DocumentKind::ALL.into_iter().map(of_kind).chain([of_policy()]).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Document of Warren",
        "oneOf": kinds,
    })
}

fn of_policy() -> Value {
    json!({
        "type": "object",
        "properties": {
            "apiVersion": {"const": API_VERSION},
            "kind": {"const": ADMISSION_POLICY},
            "spec": of_type::<AdmissionPolicy>(),
        },
        "required": ["apiVersion", "kind"],
        "additionalProperties": false,
    })
}

/// The schema of one kind of document.
pub(crate) fn of_kind(kind: DocumentKind) -> Value {
    let spec = match kind {
        DocumentKind::Node => of_type::<NodeFields>(),
        DocumentKind::Network => of_type::<NetworkFields>(),
        DocumentKind::Volume => of_type::<VolumeFields>(),
        DocumentKind::Secret | DocumentKind::Config => of_type::<SecretObjectFields>(),
        DocumentKind::Service => {
            let mut spec = of_type::<ServiceSpec>();
            let fields = spec.get_mut("properties").and_then(Value::as_object_mut);
            fields
                .into_iter()
                .for_each(|fields| fields.retain(|field, _| !METADATA_FIELDS.contains(&field.as_str())));
            spec
        }
    };
    let mut required = vec!["apiVersion", "kind", "metadata"];
    required.extend((kind == DocumentKind::Service).then_some("spec"));
    json!({
        "type": "object",
        "properties": {
            "apiVersion": {"const": API_VERSION},
            "kind": {"const": kind.as_str()},
            "metadata": of_type::<Metadata<String>>(),
            "spec": spec,
        },
        "required": required,
        "additionalProperties": false,
    })
}

fn of_type<T: for<'de> Deserialize<'de>>() -> Value {
    build::<T>(&mut Vec::new())
}

/// A way from a type into one of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TypePart {
    Field(&'static str),
    Item,
    MapValue,
    Variant(&'static str),
}

/// How a type is written.
#[derive(Debug, Clone, Copy)]
enum ValueShape {
    Bool,
    Integer {
        least: i64,
        most: u64,
    },
    Text,
    List,
    Map,
    Struct {
        name: &'static str,
        fields: &'static [&'static str],
    },
    Enum {
        variants: &'static [&'static str],
    },
    /// A variant without content.
    Unit,
}

fn build<T: for<'de> Deserialize<'de>>(path: &mut Vec<TypePart>) -> Value {
    let found = RefCell::new(None);
    // Fails once the shape is found.
    let _ = T::deserialize(ShapeReader { path, found: &found });
    let mut inner = |step| {
        path.push(step);
        let schema = build::<T>(path);
        path.pop();
        schema
    };
    match found.into_inner() {
        // Numbers and booleans are read as the text that they are in the file.
        Some(ValueShape::Text) => json!({"type": ["string", "number", "boolean"]}),
        Some(ValueShape::Bool) => json!({"type": "boolean"}),
        Some(ValueShape::Integer { least, most }) => {
            json!({"type": "integer", "minimum": least, "maximum": most})
        }
        Some(ValueShape::List) => json!({"type": "array", "items": inner(TypePart::Item)}),
        Some(ValueShape::Map) => json!({"type": "object", "additionalProperties": inner(TypePart::MapValue)}),
        Some(ValueShape::Struct { name, fields }) => {
            let properties = fields.iter().map(|field| ((*field).to_owned(), inner(TypePart::Field(field))));
            let properties: Map<String, Value> = properties.collect();
            of_struct(name, properties)
        }
        Some(ValueShape::Enum { variants }) => {
            let all: Vec<(&str, Value)> =
                variants.iter().map(|name| (*name, inner(TypePart::Variant(name)))).collect();
            let units = all.iter().filter(|(_, content)| content.is_null()).map(|(name, _)| *name);
            let units: Vec<&str> = units.collect();
            let with_content = all.iter().filter(|(_, content)| !content.is_null());
            let mut choices: Vec<Value> =
                with_content.map(|(name, content)| of_variant(name, content)).collect();
            if choices.is_empty() {
                return json!({"enum": units});
            }
            choices.extend((!units.is_empty()).then(|| json!({"enum": units})));
            json!({"oneOf": choices})
        }
        Some(ValueShape::Unit) => Value::Null,
        None => json!({}),
    }
}

fn of_struct(name: &str, properties: Map<String, Value>) -> Value {
    let required = REQUIRED.into_iter().find(|(of, _)| *of == name).map_or(&[][..], |(_, fields)| fields);
    let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn of_variant(name: &str, content: &Value) -> Value {
    json!({
        "type": "object",
        "properties": {name: content},
        "required": [name],
        "additionalProperties": false,
    })
}

/// Ends the reading, with the shape found or a part that cannot be made up.
#[derive(Debug)]
struct Stop;

impl std::error::Error for Stop {}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stopped")
    }
}

impl de::Error for Stop {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

/// Goes along `path`, and records the shape of what is there.
#[derive(Clone, Copy)]
struct ShapeReader<'a> {
    path: &'a [TypePart],
    found: &'a RefCell<Option<ValueShape>>,
}

impl<'a> ShapeReader<'a> {
    fn record<T>(&self, shape: ValueShape) -> Result<T, Stop> {
        if self.path.is_empty() {
            self.found.replace(Some(shape));
        }
        Err(Stop)
    }

    fn next(&self) -> Option<(TypePart, Self)> {
        let (step, rest) = self.path.split_first()?;
        Some((*step, Self { path: rest, ..*self }))
    }

    fn read_struct<'de, V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        match self.next() {
            Some((TypePart::Field(field), inner)) => visitor.visit_map(OneEntry { key: Some(field), inner }),
            _ => self.record(ValueShape::Struct { name, fields }),
        }
    }
}

macro_rules! shapes {
    ($($method:ident $type:ty),+ $(,)?) => { $(
        fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
            let (least, most) = (i64::try_from(<$type>::MIN), u64::try_from(<$type>::MAX));
            self.record(ValueShape::Integer { least: least.unwrap_or(i64::MIN), most: most.unwrap_or(u64::MAX) })
        }
    )+ };
}

impl<'de, 'a> Deserializer<'de> for ShapeReader<'a> {
    type Error = Stop;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
        Err(Stop)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
        self.record(ValueShape::Bool)
    }

    shapes! {
        deserialize_i8 i8, deserialize_i16 i16, deserialize_i32 i32, deserialize_i64 i64, deserialize_u8 u8,
        deserialize_u16 u16, deserialize_u32 u32, deserialize_u64 u64,
    }

    fn deserialize_str<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
        self.record(ValueShape::Text)
    }

    fn deserialize_string<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
        self.record(ValueShape::Text)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        match self.next() {
            Some((TypePart::Item, inner)) => visitor.visit_seq(OneItem(Some(inner))),
            _ => self.record(ValueShape::List),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        match self.next() {
            Some((TypePart::MapValue, inner)) => visitor.visit_map(OneEntry { key: Some("key"), inner }),
            _ => self.record(ValueShape::Map),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        self.read_struct(name, fields, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        match self.next() {
            Some((TypePart::Variant(name), inner)) => visitor.visit_enum(OneVariant { name, inner }),
            _ => self.record(ValueShape::Enum { variants }),
        }
    }

    serde::forward_to_deserialize_any! {
        i128 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

struct OneItem<'a>(Option<ShapeReader<'a>>);

impl<'de> SeqAccess<'de> for OneItem<'_> {
    type Error = Stop;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Stop> {
        self.0.take().map(|inner| seed.deserialize(inner)).transpose()
    }
}

struct OneEntry<'a> {
    key: Option<&'static str>,
    inner: ShapeReader<'a>,
}

impl<'de> MapAccess<'de> for OneEntry<'_> {
    type Error = Stop;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Stop> {
        let text = |key: &'static str| -> StrDeserializer<'static, Stop> { key.into_deserializer() };
        self.key.take().map(|key| seed.deserialize(text(key))).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Stop> {
        seed.deserialize(self.inner)
    }
}

struct OneVariant<'a> {
    name: &'static str,
    inner: ShapeReader<'a>,
}

impl<'de> EnumAccess<'de> for OneVariant<'_> {
    type Error = Stop;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Stop> {
        let text: StrDeserializer<'_, Stop> = self.name.into_deserializer();
        Ok((seed.deserialize(text)?, self))
    }
}

impl<'de> VariantAccess<'de> for OneVariant<'_> {
    type Error = Stop;

    fn unit_variant(self) -> Result<(), Stop> {
        self.inner.record(ValueShape::Unit)
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Stop> {
        seed.deserialize(self.inner)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Stop> {
        self.inner.deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        self.inner.read_struct(self.name, fields, visitor)
    }
}
