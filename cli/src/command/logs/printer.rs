//! Writes log entries: what was written to stdout there to stdout here, the rest to stderr, bytes as they are.

use std::io::{self, Write};

use warren_proto::v1;
use warren_proto::v1::log_entry::Entry;

/// Bytes that are kept until they are written in one go.
const BUFFER: usize = 64 << 10;

/// What stands before each line.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// Whose it is: `web.1@node-1 | `.
    pub names: bool,
    /// When it was written.
    pub timestamps: bool,
}

/// One of the two outputs. A line that comes in parts stays open between them.
struct Output<W> {
    to: W,
    buffer: Vec<u8>,
    /// Whose line is open.
    open: Option<(String, i32)>,
}

impl<W: Write> Output<W> {
    fn new(to: W) -> Self {
        Self { to, buffer: Vec::new(), open: None }
    }

    fn line(&mut self, whose: (String, i32), start: &str, line: &v1::LogLine) -> io::Result<()> {
        if self.open.as_ref() != Some(&whose) {
            self.close();
            self.buffer.extend_from_slice(start.as_bytes());
        }
        self.buffer.extend_from_slice(&line.text);
        self.open = line.partial.then_some(whose);
        if !line.partial {
            self.buffer.push(b'\n');
        }
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    /// Ends a line whose rest has not come, before something else is said.
    fn close(&mut self) {
        if self.open.take().is_some() {
            self.buffer.push(b'\n');
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = self.to.write_all(&self.buffer).and_then(|()| self.to.flush());
        self.buffer.clear();
        written
    }
}

/// Prints entries as they come.
pub struct Printer<O, E> {
    style: Style,
    out: Output<O>,
    err: Output<E>,
    lines: u64,
    troubles: u64,
}

impl<O: Write, E: Write> Printer<O, E> {
    /// Nothing is written before the first flush, or before there is a lot.
    pub fn new(out: O, err: E, style: Style) -> Self {
        Self { style, out: Output::new(out), err: Output::new(err), lines: 0, troubles: 0 }
    }

    pub fn print(&mut self, entry: v1::LogEntry) -> io::Result<()> {
        let v1::LogEntry { task_id, service_name, slot, node_name, entry } = entry;
        let name = format!("{service_name}.{slot}@{node_name}");
        match entry {
            Some(Entry::Line(line)) => {
                self.lines += 1;
                let mut start = if self.style.names { format!("{name} | ") } else { String::new() };
                if self.style.timestamps {
                    start += &format!("{} ", time(line.at_ns));
                }
                let whose = (task_id, line.stream);
                match line.stream() {
                    v1::LogStream::Err => {
                        // Where both go to one place, what came first stands first.
                        self.out.flush()?;
                        self.err.line(whose, &start, &line)
                    }
                    v1::LogStream::Out | v1::LogStream::Unspecified => {
                        self.err.flush()?;
                        self.out.line(whose, &start, &line)
                    }
                }
            }
            Some(Entry::Trouble(why)) => {
                self.troubles += 1;
                self.out.flush()?;
                self.err.close();
                let whose = if service_name.is_empty() { node_name } else { name };
                self.err.buffer.extend_from_slice(format!("warning: {whose}: {why}\n").as_bytes());
                self.err.flush()
            }
            // Something that later versions say.
            None => Ok(()),
        }
    }

    /// Writes out all that was printed.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()?;
        self.err.flush()
    }

    /// Nothing could be read, and something was wrong.
    pub fn only_troubles(&self) -> bool {
        self.lines == 0 && self.troubles > 0
    }
}

/// RFC 3339 with nanoseconds, in UTC.
fn time(at_ns: u64) -> String {
    let time = jiff::Timestamp::from_nanosecond(i128::from(at_ns));
    time.map_or_else(|_| at_ns.to_string(), |time| format!("{time:.9}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(slot: u32, stream: v1::LogStream, text: &[u8], partial: bool) -> v1::LogEntry {
        let line = v1::LogLine {
            at_ns: 1_795_184_280_120_000_001,
            stream: stream.into(),
            text: text.to_vec().into(),
            partial,
        };
        v1::LogEntry {
            task_id: format!("s-{slot}"),
            service_name: "web".into(),
            slot,
            node_name: "n1".into(),
            entry: Some(Entry::Line(line)),
        }
    }

    fn printed(style: Style, entries: Vec<v1::LogEntry>) -> (String, String, bool) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut printer = Printer::new(&mut out, &mut err, style);
        entries.into_iter().for_each(|entry| printer.print(entry).unwrap());
        printer.flush().unwrap();
        let only_troubles = printer.only_troubles();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (text(&out), text(&err), only_troubles)
    }

    const PLAIN: Style = Style { names: false, timestamps: false };
    const NAMES: Style = Style { names: true, timestamps: false };

    #[test]
    fn lines_go_where_they_were_written_and_say_whose_they_are() {
        let (out, err) = (v1::LogStream::Out, v1::LogStream::Err);
        let entries = || vec![line(1, out, b"a", false), line(2, err, b"b", false), line(2, out, b"", false)];
        let (stdout, stderr, _) = printed(PLAIN, entries());
        assert_eq!((stdout.as_str(), stderr.as_str()), ("a\n\n", "b\n"));
        let (stdout, stderr, _) = printed(NAMES, entries());
        assert_eq!((stdout.as_str(), stderr.as_str()), ("web.1@n1 | a\nweb.2@n1 | \n", "web.2@n1 | b\n"));
        let (stdout, ..) = printed(Style { names: true, timestamps: true }, entries());
        assert!(stdout.starts_with("web.1@n1 | 2026-11-20T14:18:00.120000001Z a\n"), "{stdout}");
    }

    #[test]
    fn parts_of_a_line_are_put_together_unless_another_comes_between() {
        let out = v1::LogStream::Out;
        let parts = vec![line(1, out, b"lo", true), line(1, out, b"ng", false), line(1, out, b"x", false)];
        assert_eq!(printed(NAMES, parts).0, "web.1@n1 | long\nweb.1@n1 | x\n");
        let between = vec![line(1, out, b"lo", true), line(2, out, b"x", false), line(1, out, b"ng", false)];
        assert_eq!(printed(NAMES, between).0, "web.1@n1 | lo\nweb.2@n1 | x\nweb.1@n1 | ng\n");
        // The other stream has a place of its own.
        let streams = vec![
            line(1, out, b"lo", true),
            line(1, v1::LogStream::Err, b"x", false),
            line(1, out, b"ng", false),
        ];
        assert_eq!(printed(NAMES, streams).0, "web.1@n1 | long\n");
        // The end of what is there may be the middle of a line.
        assert_eq!(printed(PLAIN, vec![line(1, out, b"lo", true)]).0, "lo");
    }

    #[test]
    fn bytes_stay_what_they_are() {
        let mut out = Vec::new();
        let mut printer = Printer::new(&mut out, Vec::new(), PLAIN);
        printer.print(line(1, v1::LogStream::Out, b"\xff\x00\x1b[1m", false)).unwrap();
        printer.flush().unwrap();
        drop(printer);
        assert_eq!(out, b"\xff\x00\x1b[1m\n");
    }

    #[test]
    fn troubles_are_told_beside_the_lines() {
        let trouble = || v1::LogEntry {
            service_name: "web".into(),
            slot: 1,
            node_name: "n1".into(),
            entry: Some(Entry::Trouble("the node is down".into())),
            ..Default::default()
        };
        let (stdout, stderr, only_troubles) = printed(NAMES, vec![trouble()]);
        assert_eq!((stdout.as_str(), stderr.as_str()), ("", "warning: web.1@n1: the node is down\n"));
        assert!(only_troubles);
        let some = vec![line(1, v1::LogStream::Out, b"a", false), trouble()];
        assert!(!printed(NAMES, some).2);
        assert!(!printed(NAMES, vec![]).2, "no lines are no trouble");
    }
}
