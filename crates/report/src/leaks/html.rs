//! The record of `lowtide leaks` as one HTML file.

use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::leaks::{LeakGroup, LeakReport, LeakStack};
use minijinja::{Value, context};

use super::{facts, holders, roots, size, types};
use crate::html::{HtmlError, process_page};
use crate::stacks;
use crate::svg::{Theme, leaks_chart};
use crate::text::{printable, thousands};

/// Rules for this page.
const STYLE: &str = "\
main td { vertical-align: top; }\n\
main th.what, main td.what { min-width: 30em; text-align: left; white-space: normal; overflow-wrap: anywhere; }\n\
main td.what pre { margin: 0.2em 0 0.4em 1.5em; white-space: pre-wrap; }";

/// Renders a record, of which the last report is the result.
///
/// # Errors
/// Fails if the template fails, which would be a defect of lowtide.
pub fn render(reports: &[LeakReport]) -> Result<String, HtmlError> {
    let Some(last) = reports.last() else {
        return Err(HtmlError::new("the record is empty"));
    };
    let charts = leaks_chart(reports, Theme::Page);
    let context = context! {
        title => format!("{}: {}", last.verdict.kind.name(), printable(&last.command.join(" "))),
        facts => facts(last),
        pid => last.pid,
        because => last.verdict.because.clone(),
        left => last.seconds_to_limit.map(|left| HumanSeconds(left).to_string()),
        is_bad => last.bytes_per_hour > 0,
        chart => charts.svg,
        groups => last.groups.iter().map(|found| group(found, last)).collect::<Vec<Value>>(),
        mapped_by => shown("mapped", &last.mapped_by),
        notes => last.notes.clone(),
    };
    process_page(include_str!("../../assets/leaks.html"), STYLE, context)
}

fn group(found: &LeakGroup, report: &LeakReport) -> Value {
    let about = if report.sampled_share < 1.0 { "≈ " } else { "" };
    let [low, high] = found.bytes_per_hour_interval;
    context! {
        verdict => found.verdict.name(),
        count => format!("{about}{}", thousands(found.count)),
        size => size(found),
        bytes => Human(found.bytes).to_string(),
        rate => (found.bytes_per_hour > 0).then(|| Human(found.bytes_per_hour).to_string()),
        interval => (low != high).then(|| format!("{} to {}", Human(low), Human(high))),
        types => types(&found.types),
        holders => holders(&found.holders),
        roots => roots(found),
        stacks => shown("allocated", &found.stacks),
        because => found.because.iter().map(|why| printable(why)).collect::<Vec<String>>(),
    }
}

/// Formats the stacks that are worth showing. `done` is what they did.
fn shown(done: &str, all: &[LeakStack]) -> Vec<Value> {
    let stack = |stack: &LeakStack| {
        context! { title => stacks::summary(done, stack), lines => stacks::lines(stack) }
    };
    stacks::shown(all).map(stack).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_the_process_is_escaped_on_the_page() {
        let mut report = super::super::tests::report();
        report.command = vec!["<script>alert(1)</script>".to_owned()];
        report.groups[0].types[0].name = "C++ Map<Key, \u{202e}Value>".to_owned();
        let page = render(&[report]).unwrap();
        assert!(!page.contains("<script>alert"), "{page}");
        assert!(page.contains("C++ Map&lt;Key,  Value&gt;"), "{page}");
    }
}
