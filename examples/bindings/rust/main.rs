//! Opens a bundle through edgepack.h and prints the answers for a picture as JSON.
//!
//!     main RUNTIME BUNDLE WIDTH HEIGHT <RGB
//!
//! RUNTIME is a libonnxruntime.so, RGB the picture's bytes. The README has the commands.

use std::ffi::{c_char, c_void, CStr, CString};
use std::io::Read;
use std::ptr::null;

// Each as in edgepack.h; a program of its own has them from bindgen.
#[repr(C)]
struct Status { code: i32, text: [c_char; 4096], hint: [c_char; 512] }
#[repr(C)]
struct Options { size: usize, runtime: *const c_char, variant: *const c_char, cache: *const c_char, extensions: *const c_char }
#[repr(C)]
#[derive(Clone, Copy)]
struct Plane { data: *const u8, bytes: usize, row_stride: i64, pixel_stride: i64 }
#[repr(C)]
struct Frame { format: i32, width: i64, height: i64, planes: usize, plane: [Plane; 3], rotation: i32, matrix: i32, is_video: i32 }
#[repr(C)]
struct Item { name: *const c_char, tensor: *const c_void, frame: *const Frame, text: *const c_char, file: *const c_void, file_bytes: usize }

extern "C" {
    fn edgepack_open(folder: *const c_char, options: *const Options, model: *mut *mut c_void, status: *mut Status) -> i32;
    fn edgepack_close(model: *mut c_void);
    fn edgepack_predict(model: *const c_void, items: *const Item, count: usize, options: *const c_void, answers: *mut *mut c_void, status: *mut Status) -> i32;
    fn edgepack_get_json(answers: *const c_void) -> *const c_char;
    fn edgepack_free_answers(answers: *mut c_void);
}

fn check(code: i32, status: &Status) {
    let text = |chars: &[c_char]| unsafe { CStr::from_ptr(chars.as_ptr()) }.to_string_lossy().into_owned();
    if code != 0 {
        eprintln!("error {code}: {}\n  hint: {}", text(&status.text), text(&status.hint));
        std::process::exit(1);
    }
}

fn main() {
    let words: Vec<CString> = std::env::args().skip(1).map(|word| CString::new(word).unwrap()).collect();
    let number = |at: usize| words[at].to_str().unwrap().parse::<i64>().expect("a size");
    let (width, height, mut rgb) = (number(2), number(3), Vec::new());
    std::io::stdin().read_to_end(&mut rgb).expect("the picture");
    let mut status = Status { code: 0, text: [0; 4096], hint: [0; 512] };
    let options = Options { size: std::mem::size_of::<Options>(), runtime: words[0].as_ptr(), variant: null(), cache: null(), extensions: null() };
    let plane = Plane { data: rgb.as_ptr(), bytes: rgb.len(), row_stride: 3 * width, pixel_stride: 3 };
    let frame = Frame { format: 1, width, height, planes: 1, plane: [plane; 3], rotation: 0, matrix: 0, is_video: 0 };
    let item = Item { name: null(), tensor: null(), frame: &frame, text: null(), file: null(), file_bytes: 0 };
    let (mut model, mut answers) = (std::ptr::null_mut(), std::ptr::null_mut());
    unsafe {
        check(edgepack_open(words[1].as_ptr(), &options, &mut model, &mut status), &status);
        check(edgepack_predict(model, &item, 1, null(), &mut answers, &mut status), &status);
        let json = edgepack_get_json(answers);
        assert!(!json.is_null(), "there is no memory for the answers");
        println!("{}", CStr::from_ptr(json).to_str().expect("UTF-8"));
        edgepack_free_answers(answers);
        edgepack_close(model);
    }
}
