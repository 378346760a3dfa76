//! The reference in `docs/reference/`: a page for each noun, and one for the other commands and the global options. The
//! pages are written from the definitions of the commands; `WARREN_UPDATE_GOLDEN=1` writes those of this version for
//! review.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory};

use super::Cli;

const NOTICE: &str = "<!-- Written by `WARREN_UPDATE_GOLDEN=1 cargo test -p warren reference` -->\n\n";
const SUMMARY: &str = include_str!("../../../docs/SUMMARY.md");

/// The shown commands below a command.
fn below(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help")
}

/// Help text as Markdown. Code between backticks stays as it is.
fn escaped(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(number, part)| match number % 2 {
        0 => part.replace('\\', "\\\\").replace('<', "\\<").replace('*', "\\*"),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("`")
}

/// A paragraph for each line.
fn paragraphs(text: Option<&StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| format!("{}\n\n", escaped(line.trim()))).collect()
}

/// The list item of an argument: its forms, its help, and what applies to its value.
fn item(argument: &Arg) -> String {
    let short = argument.get_short().filter(|_| argument.get_long().is_some());
    let short = short.map(|letter| format!("-{letter}, ")).unwrap_or_default();
    let help = argument.get_long_help().or_else(|| argument.get_help()).map(ToString::to_string);
    let help: Vec<String> = help.unwrap_or_default().split_whitespace().map(str::to_owned).collect();
    let mut text = format!("- `{short}{argument}`: {}", escaped(&help.join(" ")));
    let mut add = |name: &str, values: Vec<String>| {
        if !values.is_empty() {
            text += &format!(" [{name}: {}]", values.join(", "));
        }
    };
    if argument.get_action().takes_values() {
        let defaults = argument.get_default_values().iter().filter(|_| !argument.is_hide_default_value_set());
        add("default", defaults.map(|value| format!("`{}`", value.to_string_lossy())).collect());
        let values = argument.get_possible_values();
        let values = values.iter().filter(|value| !value.is_hide_set());
        add("values", values.map(|value| format!("`{}`", value.get_name())).collect());
    }
    let variable = argument.get_env().map(|name| format!("`{}`", name.to_string_lossy()));
    add("environment", variable.into_iter().collect());
    let long = argument.get_all_aliases().unwrap_or_default();
    let short = argument.get_all_short_aliases().unwrap_or_default();
    let long = long.into_iter().map(|alias| format!("`--{alias}`"));
    add("also", long.chain(short.into_iter().map(|letter| format!("`-{letter}`"))).collect());
    text + "\n"
}

/// The lists of all shown arguments below their headings. `warren` alone has the global options.
fn arguments(command: &Command) -> String {
    let mut lists: Vec<(&str, String)> = Vec::new();
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let is_general = ["help", "version"].contains(&argument.get_id().as_str());
        if is_general || (argument.is_global_set() && command.get_name() != "warren") {
            continue;
        }
        let default = if argument.is_positional() { "Arguments" } else { "Options" };
        let heading = argument.get_help_heading().unwrap_or(default);
        match lists.iter_mut().find(|(known, _)| *known == heading) {
            Some((_, items)) => *items += &item(argument),
            None => lists.push((heading, item(argument))),
        }
    }
    lists.into_iter().map(|(heading, items)| format!("**{heading}**\n\n{items}\n")).collect()
}

/// What is said of the command alone, below a heading of that level.
fn section(command: &Command, level: usize) -> String {
    let name = command.get_bin_name().unwrap_or("warren");
    let about = paragraphs(command.get_long_about().or_else(|| command.get_about()));
    let usage = command.clone().render_usage();
    let aliases: Vec<String> = command.get_all_aliases().map(|alias| format!("`{alias}`")).collect();
    let aliases = match aliases.as_slice() {
        [] => String::new(),
        aliases => format!("Also: {}\n\n", aliases.join(", ")),
    };
    let (heading, arguments) = ("#".repeat(level), arguments(command));
    let notes = paragraphs(command.get_after_long_help().or_else(|| command.get_after_help()));
    format!("{heading} {name}\n\n{about}```text\n{usage}\n```\n\n{aliases}{arguments}{notes}")
}

/// A list of commands with the targets of their links.
fn links<'a>(commands: impl Iterator<Item = &'a Command>, target: fn(&Command) -> String) -> String {
    let about = |command: &Command| command.get_about().map(ToString::to_string).unwrap_or_default();
    let link = |command: &Command| {
        format!("- [{}]({}): {}\n", command.get_name(), target(command), escaped(&about(command)))
    };
    commands.map(link).collect::<String>() + "\n"
}

/// The section of a command and those of all commands below it.
fn sections(command: &Command, level: usize) -> String {
    let anchor = |inner: &Command| format!("#{}", inner.get_bin_name().unwrap_or_default().replace(' ', "-"));
    let inner = match below(command).next() {
        Some(_) => format!("**Commands**\n\n{}", links(below(command), anchor)),
        None => String::new(),
    };
    let deeper: String = below(command).map(|inner| sections(inner, level + 1)).collect();
    section(command, level) + &inner + &deeper
}

fn file(noun: &Command) -> String {
    format!("{}.md", noun.get_name())
}

/// All pages by file name.
fn pages() -> BTreeMap<String, String> {
    let mut root = Cli::command();
    root.build();
    let is_noun = |command: &&Command| below(command).next().is_some();
    let (nouns, others): (Vec<&Command>, Vec<&Command>) = below(&root).partition(is_noun);
    let other: String = others.iter().map(|command| sections(command, 2)).collect();
    let start = section(&root, 1) + "**Nouns**\n\n" + &links(nouns.iter().copied(), file) + &other;
    let mut pages: BTreeMap<_, _> = nouns.iter().map(|noun| (file(noun), sections(noun, 1))).collect();
    pages.insert("warren.md".to_owned(), start);
    pages.values_mut().for_each(|text| *text = format!("{NOTICE}{}\n", text.trim_end()));
    pages
}

#[test]
fn reference_is_of_this_version() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/reference");
    let is_updated = std::env::var_os("WARREN_UPDATE_GOLDEN").is_some();
    for (name, text) in pages() {
        if is_updated {
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join(&name), &text).unwrap();
        }
        let stored = std::fs::read_to_string(directory.join(&name)).unwrap_or_default();
        let differing = stored.lines().zip(text.lines()).find(|(stored, text)| stored != text);
        assert_eq!(differing, None, "docs/reference/{name}: see the text of this module");
        assert_eq!(stored.len(), text.len(), "docs/reference/{name}: see the text of this module");
    }
}

#[test]
fn book_has_the_pages_of_the_reference() {
    let listed = SUMMARY.split("](reference/").skip(1).filter_map(|rest| rest.split(')').next());
    let mut listed: Vec<String> = listed.map(str::to_owned).collect();
    listed.sort();
    assert_eq!(listed, pages().into_keys().collect::<Vec<_>>());
}
