//! Finds the places of a crate in which a mutant can be compiled.
//!
//! A [`Mutant`] is a range of a source file and its replacement while the mutant is selected. Excluded are code that
//! runs in the compiler (constants, `const fn`, array lengths), code behind `#[cfg(test)]` or a feature, and arguments
//! of macros: nothing can be selected there at run time, or a mutant would change the tests.

use std::ops::Range;
use std::path::{Path, PathBuf};

use proc_macro2::Span;
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Block, Expr, ImplItem, Item, Lit, Pat, ReturnType, Signature, Stmt, TraitItem, Type, UnOp,
};

use crate::error::Error;
use crate::workspace;

/// A change in one place.
pub struct Mutant {
    /// The file, relative to the root of the tree.
    pub path: PathBuf,
    /// The bytes that the change replaces; empty for [`MutantForm::Return`].
    pub range: Range<usize>,
    /// The lines of `range`, from 1.
    pub lines: Range<usize>,
    /// The column of its first byte, from 1.
    pub column: usize,
    /// The change, for a reader.
    pub what: String,
    /// The change, for the compiler.
    pub form: MutantForm,
}

/// The form of a mutant's code.
pub enum MutantForm {
    /// An expression replaces another.
    Replace(String),
    /// A statement is skipped.
    Skip,
    /// A function returns this value at its start.
    Return(String),
}

/// Finds the mutants in `files`, sorted by file and position.
pub fn find(root: &Path, files: &[PathBuf]) -> Result<Vec<Mutant>, Error> {
    let mut found = Vec::new();
    let mut tests = Vec::new();
    for path in files {
        let file = syn::parse_file(&workspace::read(path)?).map_err(|_| Error::Lex { path: path.clone() })?;
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let folder = path.parent().unwrap_or(root);
        let modules = if matches!(stem, "lib" | "mod") { folder.to_owned() } else { folder.join(stem) };
        let path = path.strip_prefix(root).unwrap_or(path).to_owned();
        let mut finder =
            Finder { path, modules, function: String::new(), found: &mut found, tests: &mut tests };
        finder.visit_file(&file);
    }
    found.retain(|mutant| {
        let path = root.join(&mutant.path);
        !tests.iter().any(|test| path.starts_with(test) || path == test.with_extension("rs"))
    });
    found.sort_by_key(|mutant| (mutant.path.clone(), mutant.range.start, mutant.range.end));
    Ok(found)
}

struct Finder<'a> {
    path: PathBuf,
    /// The folder of the file's modules.
    modules: PathBuf,
    /// The current function.
    function: String,
    found: &'a mut Vec<Mutant>,
    /// The modules of tests, as paths without the extension.
    tests: &'a mut Vec<PathBuf>,
}

impl Finder<'_> {
    fn add(&mut self, node: &impl Spanned, what: String, form: MutantForm) {
        let span = node.span();
        self.push(span.byte_range(), span, what, form);
    }

    fn push(&mut self, range: Range<usize>, span: Span, what: String, form: MutantForm) {
        let (lines, column) = (span.start().line..span.end().line + 1, span.start().column + 1);
        let what = format!("{}: {what}", self.function);
        // A line break in the text would move all later lines.
        if !matches!(&form, MutantForm::Replace(text) if text.contains('\n')) {
            self.found.push(Mutant { path: self.path.clone(), range, lines, column, what, form });
        }
    }

    fn function(&mut self, attributes: &[Attribute], signature: &Signature, block: &Block) {
        if is_apart(attributes) || signature.constness.is_some() {
            return;
        }
        let outer = std::mem::replace(&mut self.function, signature.ident.to_string());
        if !block.stmts.is_empty() {
            let brace = block.brace_token.span.open();
            let (span, at) = (signature.ident.span().join(brace).unwrap_or(brace), brace.byte_range().end);
            for value in values(&signature.output) {
                let what = if value.is_empty() { "returns at once" } else { "returns" };
                let what =
                    if value.is_empty() { what.to_owned() } else { format!("{what} `{value}` at once") };
                self.push(at..at, span, what, MutantForm::Return((*value).to_owned()));
            }
        }
        self.visit_block(block);
        self.function = outer;
    }

    fn condition(&mut self, condition: &Expr) {
        if matches!(
            condition,
            Expr::Call(_) | Expr::MethodCall(_) | Expr::Field(_) | Expr::Path(_) | Expr::Macro(_)
        ) {
            let text = condition.to_token_stream();
            self.add(condition, "condition negated".to_owned(), MutantForm::Replace(format!("!({text})")));
        }
    }
}

impl Visit<'_> for Finder<'_> {
    fn visit_item(&mut self, item: &Item) {
        match item {
            Item::Fn(function) => self.function(&function.attrs, &function.sig, &function.block),
            Item::Mod(module) if is_apart(&module.attrs) => {
                self.tests.push(self.modules.join(module.ident.to_string()))
            }
            Item::Impl(block) if is_apart(&block.attrs) => {}
            Item::Mod(_) | Item::Impl(_) | Item::Trait(_) => visit::visit_item(self, item),
            _ => {}
        }
    }

    fn visit_impl_item(&mut self, item: &ImplItem) {
        if let ImplItem::Fn(function) = item {
            self.function(&function.attrs, &function.sig, &function.block);
        }
    }

    fn visit_trait_item(&mut self, item: &TraitItem) {
        if let TraitItem::Fn(function) = item
            && let Some(block) = &function.default
        {
            self.function(&function.attrs, &function.sig, block);
        }
    }

    fn visit_stmt(&mut self, statement: &Stmt) {
        if let Stmt::Expr(expression, Some(_)) = statement
            && let Some(what) = effect(expression)
        {
            self.add(statement, format!("{what} removed"), MutantForm::Skip);
        }
        visit::visit_stmt(self, statement);
    }

    fn visit_pat(&mut self, pattern: &Pat) {
        if let Pat::Guard(guard) = pattern {
            if !has_let(&guard.guard) {
                for value in ["true", "false"] {
                    self.add(
                        &guard.guard,
                        format!("guard is `{value}`"),
                        MutantForm::Replace(value.to_owned()),
                    );
                }
            }
            self.visit_expr(&guard.guard);
        }
    }

    fn visit_expr(&mut self, expression: &Expr) {
        match expression {
            Expr::Const(_) => return,
            Expr::Repeat(repeat) => return self.visit_expr(&repeat.expr),
            Expr::If(branch) => self.condition(&branch.cond),
            Expr::Binary(binary) if !has_let(expression) => {
                let (left, right) = (binary.left.to_token_stream(), binary.right.to_token_stream());
                let operator = binary.op.to_token_stream().to_string();
                for other in others(&operator) {
                    let what = format!("`{operator}` becomes `{other}`");
                    self.add(expression, what, MutantForm::Replace(format!("({left}) {other} ({right})")));
                }
            }
            Expr::Unary(unary) if !matches!(unary.op, UnOp::Deref(_)) => {
                let what = format!("`{}` removed", unary.op.to_token_stream());
                self.add(expression, what, MutantForm::Replace(unary.expr.to_token_stream().to_string()));
            }
            Expr::Lit(literal) => {
                let other = match &literal.lit {
                    Lit::Bool(literal) => (!literal.value).to_string(),
                    Lit::Int(literal) => match literal.base10_parse::<u128>() {
                        Ok(value) => format!("{}{}", value.wrapping_add(1), literal.suffix()),
                        Err(_) => return,
                    },
                    _ => return,
                };
                let what = format!("`{}` becomes `{other}`", literal.to_token_stream());
                self.add(expression, what, MutantForm::Replace(other));
            }
            Expr::Call(call) if matches!(&*call.func, Expr::Path(path) if path.path.is_ident("Some")) => {
                self.add(
                    expression,
                    "`Some` becomes `None`".to_owned(),
                    MutantForm::Replace("None".to_owned()),
                );
            }
            Expr::MethodCall(call) => {
                for other in others(&call.method.to_string()) {
                    let mut text = call.clone();
                    text.method = syn::Ident::new(other, call.method.span());
                    let what = format!("`{}` becomes `{other}`", call.method);
                    self.add(expression, what, MutantForm::Replace(text.to_token_stream().to_string()));
                }
            }
            _ => {}
        }
        visit::visit_expr(self, expression);
    }

    fn visit_attribute(&mut self, _: &Attribute) {}

    fn visit_type(&mut self, _: &Type) {}

    fn visit_path_arguments(&mut self, _: &syn::PathArguments) {}

    fn visit_generic_argument(&mut self, _: &syn::GenericArgument) {}
}

/// Returns whether an item is compiled only for tests, models or images.
fn is_apart(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = attribute.meta.to_token_stream().to_string();
        let apart = ["test", "loom", "feature"].iter().any(|word| text.contains(word));
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg") && apart && !text.contains("not")
    })
}

/// Returns whether `expression` binds names for later code: `if let ... && ...`.
fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

/// Returns the values that a mutant of a function can return.
fn values(output: &ReturnType) -> &'static [&'static str] {
    let ReturnType::Type(_, output) = output else { return &[""] };
    let Type::Path(path) = &**output else { return &[] };
    let Some(last) = path.path.segments.last() else { return &[] };
    match last.ident.to_string().as_str() {
        "bool" => &["true", "false"],
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" | "i32" | "i64" | "isize" => &["0", "1"],
        "Option" => &["None"],
        "Vec" | "String" => &["Default::default()"],
        "Result" if output.to_token_stream().to_string().contains("< ()") => &["Ok(())"],
        _ => &[],
    }
}

/// Returns a description of a statement with an effect.
fn effect(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Call(call) => {
            Some(format!("call of `{}`", call.func.to_token_stream().to_string().replace(' ', "")))
        }
        Expr::MethodCall(call) => Some(format!("call of `{}`", call.method)),
        Expr::Try(tried) => effect(&tried.expr),
        Expr::Assign(assign) => {
            Some(format!("assignment of `{}`", assign.left.to_token_stream().to_string().replace(' ', "")))
        }
        Expr::Binary(binary) => {
            let operator = binary.op.to_token_stream().to_string();
            matches!(&*operator, "+=" | "-=" | "|=" | "&=").then(|| format!("`{operator}`"))
        }
        _ => None,
    }
}

/// Operators and methods, each followed by replacements of the same type.
const OTHERS: &str = "< <= >=, <= < >, > >= <=, >= > <, == !=, != ==, && ||, || &&, + -, - +, * /, / *, % *, << >>, >> <<, \
    & |, ^ |, | &, += -=, -= +=, |= &=, &= |=, min max, max min, any all, all any, first last, last first, front back, \
    wrapping_add wrapping_sub, wrapping_sub wrapping_add, saturating_sub wrapping_sub, saturating_add wrapping_add, \
    is_some is_none, is_none is_some, is_ok is_err, is_err is_ok, back front, pop_front pop_back, push_front push_back, \
    push_back push_front";

fn others(word: &str) -> impl Iterator<Item = &'static str> {
    let row = OTHERS.split(", ").find(|row| row.split(' ').next() == Some(word));
    row.into_iter().flat_map(|row| row.split(' ').skip(1))
}
