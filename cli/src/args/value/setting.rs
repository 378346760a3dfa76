//! Values that can also be taken back to their default.

use std::fmt::Display;

/// What a flag asks of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting<T> {
    /// This value.
    To(T),
    /// An empty value was given: what holds when nothing is said. No setting has an empty value that could be
    /// meant instead.
    Default,
}

/// A parser of settings whose values `read` understands.
pub fn setting<T, E: Display>(
    read: impl Fn(&str) -> Result<T, E> + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<Setting<T>, String> + Clone + Send + Sync + 'static {
    move |text: &str| match text {
        "" => Ok(Setting::Default),
        text => read(text).map(Setting::To).map_err(|why| why.to_string()),
    }
}

/// A setting that is a text as it stands; what it may be is for the spec's own check to say.
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
        assert_eq!(read("64Mi"), Ok(Setting::To(Bytes(64 << 20))));
        assert!(read("none").unwrap_err().contains("is not an amount of memory"));
        assert_eq!(setting(text)("none"), Ok(Setting::To("none".to_owned())));
    }
}
