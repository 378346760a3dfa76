//! Values that can be reset to their default.

use std::fmt::Display;

/// The value of a flag: a new value, or a reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting<T> {
    /// A new value.
    Set(T),
    /// An empty value: the default. No setting has a valid empty value.
    Default,
}

/// A parser of settings that parses values with `read`.
pub fn setting<T, E: Display>(
    read: impl Fn(&str) -> Result<T, E> + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<Setting<T>, String> + Clone + Send + Sync + 'static {
    move |text: &str| match text {
        "" => Ok(Setting::Default),
        text => read(text).map(Setting::Set).map_err(|why| why.to_string()),
    }
}

/// Flags with an empty value, which reset a setting to its default.
#[derive(Default)]
pub struct ResetFlags(pub Vec<&'static str>);

impl ResetFlags {
    /// Sets a required setting.
    pub fn set<T: Clone>(
        &mut self,
        flag: &'static str,
        given: &Option<Setting<T>>,
        target: &mut T,
        default: T,
    ) {
        match given {
            None => {}
            Some(Setting::Set(value)) => *target = value.clone(),
            Some(Setting::Default) => {
                self.0.push(flag);
                *target = default;
            }
        }
    }

    /// Sets an optional setting.
    pub fn set_optional<T: Clone>(
        &mut self,
        flag: &'static str,
        given: &Option<Setting<T>>,
        target: &mut Option<T>,
    ) {
        match given {
            None => {}
            Some(Setting::Set(value)) => *target = Some(value.clone()),
            Some(Setting::Default) => {
                self.0.push(flag);
                *target = None;
            }
        }
    }

    /// Sets a list of words; a single empty word resets it to that of the image.
    pub fn set_words(&mut self, flag: &'static str, given: &[String], target: &mut Option<Vec<String>>) {
        match given {
            [] => {}
            [word] if word.is_empty() => {
                self.0.push(flag);
                *target = None;
            }
            words => *target = Some(words.to_vec()),
        }
    }
}

/// Any text; validated with the spec.
pub fn text(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use warren_types::Bytes;

    use super::*;

    #[test]
    fn an_empty_value_is_the_default() {
        let read = setting(str::parse::<Bytes>);
        assert_eq!(read(""), Ok(Setting::Default));
        assert_eq!(read("64Mi"), Ok(Setting::Set(Bytes(64 << 20))));
        assert!(read("none").unwrap_err().contains("is not an amount of memory"));
        assert_eq!(setting(text)("none"), Ok(Setting::Set("none".to_owned())));
    }
}
