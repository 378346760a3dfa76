//! Reads a tree of YAML into a type by its serde form. Problems name the innermost value that is wrong.
//!
//! A text may be written as any scalar: the text is that of the file, so `cpu: 0.5`, `mode: 0400` and `value: true`
//! mean what they say. A field of a struct that is null counts as left out.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Expected, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};
use warren_compose::yaml::{MergeMode, ScalarType, YamlEntry, YamlNode, YamlValue, parse_integer};
use warren_compose::{ComposeProblem, KeyPath, SourcePosition, similar};

/// The value of the node at `path`.
///
/// # Errors
/// The first value or field that the type does not accept.
pub fn read<T: DeserializeOwned>(node: &YamlNode, path: &KeyPath<'_>) -> Result<T, ComposeProblem> {
    NodeReader { node, path }.read(|reader| T::deserialize(reader)).map_err(|error| {
        let (at, place) = error.place.unwrap_or_else(|| (node.at.clone(), path.to_string()));
        ComposeProblem::new(&at, place, error.message)
    })
}

/// What is wrong, and where once that is known.
#[derive(Debug)]
struct ReadError {
    message: String,
    place: Option<(SourcePosition, String)>,
}

impl ReadError {
    fn new(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), place: None }
    }

    /// At this place, unless an inner one is known.
    fn at(mut self, at: &SourcePosition, path: &KeyPath<'_>) -> Self {
        self.place.get_or_insert_with(|| (at.clone(), path.to_string()));
        self
    }
}

impl std::error::Error for ReadError {}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// More names than these are not listed.
const MAX_LISTED_NAMES: usize = 12;

/// `"x" is not NOUN; did you mean y?`, or what there is.
fn unknown(given: &str, noun: &str, known: &'static [&'static str]) -> ReadError {
    let given: String = given.chars().take(64).collect();
    ReadError::new(match similar(&given, known.iter().copied()) {
        Some(meant) => format!("{given:?} is not {noun}; did you mean {meant}?"),
        None if known.len() > MAX_LISTED_NAMES => format!("{given:?} is not {noun}"),
        None => format!("{given:?} is not {noun}; there are {}", known.join(", ")),
    })
}

impl de::Error for ReadError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message)
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format!("is {found}; give {expected}"))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format!("is {found}; give {expected}"))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        unknown(variant, "a value of this field", expected)
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        unknown(field, "a field here", expected)
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(format!("{field} is missing; give it"))
    }
}

#[derive(Clone, Copy)]
struct NodeReader<'a> {
    node: &'a YamlNode,
    path: &'a KeyPath<'a>,
}

impl<'a> NodeReader<'a> {
    /// Reads the node. A text that its type does not accept is noticed only after it was read.
    fn read<T>(self, read: impl FnOnce(Self) -> Result<T, ReadError>) -> Result<T, ReadError> {
        if self.node.merge != MergeMode::Merge {
            return self.located(Err(ReadError::new("has a tag of Compose files; leave it out")));
        }
        self.located(read(self))
    }

    fn wrong(&self, wanted: &str) -> ReadError {
        ReadError::new(format!("is {}; give {wanted}", self.node.type_name())).at(&self.node.at, self.path)
    }

    fn located<T>(&self, result: Result<T, ReadError>) -> Result<T, ReadError> {
        result.map_err(|error| error.at(&self.node.at, self.path))
    }

    /// The text of a scalar that is not null.
    fn text(&self, wanted: &str) -> Result<&'a str, ReadError> {
        self.node.as_text().ok_or_else(|| self.wrong(wanted))
    }

    fn boolean(&self) -> Result<bool, ReadError> {
        match &self.node.value {
            YamlValue::Scalar(text, ScalarType::Bool) => Ok(text.eq_ignore_ascii_case("true")),
            _ => Err(self.wrong("true or false")),
        }
    }

    fn integer(&self, least: i64, most: i64) -> Result<i64, ReadError> {
        let wanted = "a whole number";
        let text = self.text(wanted)?;
        let is_number = matches!(&self.node.value, YamlValue::Scalar(_, ScalarType::Integer));
        let number = parse_integer(text).filter(|_| is_number).ok_or_else(|| self.wrong(wanted))?;
        let outside = || ReadError::new(format!("{number} is not between {least} and {most}"));
        let found = (least..=most).contains(&number).then_some(number).ok_or_else(outside);
        self.located(found)
    }

    fn fields(&self, known: Option<&'static [&'static str]>) -> Result<MappingReader<'a>, ReadError> {
        let wanted = match known {
            Some(known) if !known.is_empty() => format!("a mapping with fields like {}", known[0]),
            _ => "a mapping".to_owned(),
        };
        let map = self.node.as_map().ok_or_else(|| self.wrong(&wanted))?;
        // An unknown field is refused also if it is null.
        let is_left_out = |key: &str, entry: &YamlEntry| {
            entry.node.is_null() && known.is_some_and(|known| known.contains(&key))
        };
        let entries = map.iter().filter(|(key, entry)| !is_left_out(key, entry));
        let mut entries: Vec<(&str, &YamlEntry)> = entries.map(|(key, entry)| (&**key, entry)).collect();
        // In the order of the file, last first: the first problem of the file is reported.
        entries.sort_by(|(_, one), (_, other)| other.key_at.cmp(&one.key_at));
        Ok(MappingReader { entries, path: self.path, value: None })
    }
}

macro_rules! integers {
    ($($method:ident $visit:ident $type:ty),+ $(,)?) => { $(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
            let (least, most) = (i64::try_from(<$type>::MIN), i64::try_from(<$type>::MAX));
            let number = self.integer(least.unwrap_or(i64::MIN), most.unwrap_or(i64::MAX))?;
            let number = <$type>::try_from(number).map_err(|_| self.wrong("a smaller number"))?;
            self.located(visitor.$visit(number))
        }
    )+ };
}

impl<'de, 'a> Deserializer<'de> for NodeReader<'a> {
    type Error = ReadError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match &self.node.value {
            YamlValue::List(_) => self.deserialize_seq(visitor),
            YamlValue::Map(_) => self.deserialize_map(visitor),
            YamlValue::Scalar(_, ScalarType::Null) => self.located(visitor.visit_unit()),
            YamlValue::Scalar(_, ScalarType::Bool) => self.deserialize_bool(visitor),
            YamlValue::Scalar(_, ScalarType::Integer) => self.deserialize_i64(visitor),
            YamlValue::Scalar(..) => self.deserialize_str(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let value = self.boolean()?;
        self.located(visitor.visit_bool(value))
    }

    integers! {
        deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16, deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64, deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32, deserialize_u64 visit_u64 u64,
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let text = self.text("a text")?;
        self.located(visitor.visit_str(text))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.node.is_null() {
            true => visitor.visit_none(),
            false => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let YamlValue::List(items) = &self.node.value else { return Err(self.wrong("a list")) };
        self.located(visitor.visit_seq(ItemReader { items: items.iter().enumerate(), path: self.path }))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let fields = self.fields(None)?;
        self.located(visitor.visit_map(fields))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let fields = self.fields(Some(fields))?;
        self.located(visitor.visit_map(fields))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let variant = match &self.node.value {
            YamlValue::Map(map) => {
                let mut entries = map.iter();
                match (entries.next(), entries.next()) {
                    (Some((name, entry)), None) => {
                        VariantReader { name, content: Some(entry), reader: &self }
                    }
                    _ => return Err(self.wrong(&format!("one of {}", variants.join(", ")))),
                }
            }
            _ => VariantReader { name: self.text("a text")?, content: None, reader: &self },
        };
        let read = visitor.visit_enum(variant);
        self.located(read)
    }

    serde::forward_to_deserialize_any! {
        i128 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct ignored_any
    }
}

struct ItemReader<'a> {
    items: std::iter::Enumerate<std::slice::Iter<'a, YamlNode>>,
    path: &'a KeyPath<'a>,
}

impl<'de> SeqAccess<'de> for ItemReader<'_> {
    type Error = ReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, ReadError> {
        let Some((index, node)) = self.items.next() else { return Ok(None) };
        let reader = NodeReader { node, path: &self.path.item(index) };
        reader.read(|reader| seed.deserialize(reader)).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct MappingReader<'a> {
    /// Last first.
    entries: Vec<(&'a str, &'a YamlEntry)>,
    path: &'a KeyPath<'a>,
    value: Option<(&'a str, &'a YamlEntry)>,
}

impl<'de> MapAccess<'de> for MappingReader<'_> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ReadError> {
        self.value = self.entries.pop();
        let Some((key, entry)) = self.value else { return Ok(None) };
        let text: StrDeserializer<'_, ReadError> = key.into_deserializer();
        seed.deserialize(text).map(Some).map_err(|error| error.at(&entry.key_at, self.path))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ReadError> {
        let Some((key, entry)) = self.value.take() else { return Err(ReadError::new("has no value")) };
        let reader = NodeReader { node: &entry.node, path: &self.path.key(key) };
        reader.read(|reader| seed.deserialize(reader))
    }
}

/// `NAME`, or `NAME: CONTENT`.
struct VariantReader<'a, 'r> {
    name: &'a str,
    content: Option<&'a YamlEntry>,
    reader: &'r NodeReader<'a>,
}

impl<'a, 'r> VariantReader<'a, 'r> {
    /// Reads the content with a function; without any, the variant needs some.
    fn with_content<T>(
        self,
        read: impl FnOnce(NodeReader<'_>) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let name = self.name;
        let entry =
            self.content.ok_or_else(|| ReadError::new(format!("needs a value; write `{name}: VALUE`")))?;
        NodeReader { node: &entry.node, path: &self.reader.path.key(name) }.read(read)
    }
}

impl<'de, 'a, 'r> EnumAccess<'de> for VariantReader<'a, 'r> {
    type Error = ReadError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), ReadError> {
        let text: StrDeserializer<'_, ReadError> = self.name.into_deserializer();
        let at = self.content.map_or(&self.reader.node.at, |entry| &entry.key_at);
        let variant = seed.deserialize(text).map_err(|error| error.at(at, self.reader.path))?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for VariantReader<'_, '_> {
    type Error = ReadError;

    fn unit_variant(self) -> Result<(), ReadError> {
        match self.content.filter(|entry| !entry.node.is_null()) {
            None => Ok(()),
            Some(_) => Err(ReadError::new(format!("{0} has no value; write only `{0}`", self.name))),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, ReadError> {
        self.with_content(|content| seed.deserialize(content))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, ReadError> {
        self.with_content(|content| content.deserialize_seq(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.with_content(|content| content.deserialize_struct("", fields, visitor))
    }
}
