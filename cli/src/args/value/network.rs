//! `--network`.

use std::str::FromStr;

use warren_types::NetworkAttachment;

/// A value of `--network`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkChoice {
    /// `NAME[,alias=NAME]...`, or Docker's `name=NAME[,alias=NAME]...`.
    Attachment(NetworkAttachment),
    /// `host`: the network of the node.
    Host,
    /// `none`: only a loopback device.
    None,
}

impl FromStr for NetworkChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, options) = text.split_once(',').map_or((text, None), |(first, rest)| (first, Some(rest)));
        let name = first.strip_prefix("name=").unwrap_or(first);
        match (name, options) {
            ("host", None) => return Ok(Self::Host),
            ("none", None) => return Ok(Self::None),
            ("host" | "none", Some(_)) => {
                return Err(format!("{name} has no options: such a task has no names on a network"));
            }
            _ => {}
        }
        let network = name.parse().map_err(|error| format!("{error}"))?;
        let alias = |part: &str| match part.split_once('=') {
            Some(("alias", alias)) => alias.parse().map_err(|error| format!("{error}")),
            _ => Err(format!("{part:?} is not known; the only option is alias=NAME")),
        };
        let aliases =
            options.into_iter().flat_map(|it| it.split(',')).map(alias).collect::<Result<_, _>>()?;
        Ok(Self::Attachment(NetworkAttachment { network, aliases }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_in_both_forms() {
        for text in ["front,alias=api,alias=www", "name=front,alias=www,alias=api"] {
            let Ok(NetworkChoice::Attachment(found)) = text.parse() else { panic!("{text}") };
            assert_eq!(found.network.as_str(), "front");
            assert_eq!(found.aliases.iter().map(|it| it.as_str()).collect::<Vec<_>>(), ["api", "www"]);
        }
        for (text, expected) in
            [("host", NetworkChoice::Host), ("name=host", NetworkChoice::Host), ("none", NetworkChoice::None)]
        {
            assert_eq!(text.parse(), Ok(expected));
        }
        for (bad, expected) in [
            ("", "is not a network name"),
            ("a,driver-opt=x", "the only option is alias=NAME"),
            ("a,alias=A", "is not a DNS label"),
            ("a,", "the only option is alias=NAME"),
            ("host,alias=a", "host has no options"),
            ("name=none,", "none has no options"),
        ] {
            let found = bad.parse::<NetworkChoice>().unwrap_err();
            assert!(found.contains(expected), "{bad}: {found}");
        }
    }
}
