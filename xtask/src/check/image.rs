//! Reads the functions of an image from its symbol table.

use std::fs;
use std::path::Path;

use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

use crate::error::Error;

/// A function of an image.
pub struct Function {
    /// Its name in the source.
    pub name: String,
    /// Its address in the image.
    pub address: u64,
    /// Its machine code.
    pub code: Vec<u8>,
}

/// Returns all functions of the image at `path`.
///
/// # Errors
/// [`Error::Read`]; [`Error::Image`] if it is not ELF, or has no function symbols: a check of no function would pass.
pub fn functions(path: &Path) -> Result<Vec<Function>, Error> {
    let wrong = |reason: String| Error::Image { path: path.to_owned(), reason };
    let bytes = fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let file = object::File::parse(&*bytes).map_err(|error| wrong(error.to_string()))?;
    let mut functions = Vec::new();
    for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0) {
        let name = format!("{:#}", rustc_demangle::demangle(symbol.name().unwrap_or("?")));
        let section = symbol.section_index().and_then(|index| file.section_by_index(index).ok());
        let code = section
            .and_then(|section| section.data_range(symbol.address(), symbol.size()).ok().flatten())
            .ok_or_else(|| wrong(format!("it does not contain the code of {name}")))?;
        functions.push(Function { name, address: symbol.address(), code: code.to_vec() });
    }
    if functions.is_empty() {
        return Err(wrong("it has no function symbols".into()));
    }
    Ok(functions)
}
