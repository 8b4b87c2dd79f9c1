// Opens a bundle through edgepack.h and prints the answers for a picture as JSON.
//
//	main RUNTIME BUNDLE WIDTH HEIGHT <RGB
//
// RUNTIME is a libonnxruntime.so, RGB the picture's bytes. The README has the commands.
package main

// #cgo LDFLAGS: -ledgepack
// #include <edgepack/edgepack.h>
// #include <stdlib.h>
//
// // Go's pointers may not lie in C's structs while a call lasts: these lie on the stack of C.
// static int32_t open_model(const char *folder, const char *runtime, edgepack_model **model, edgepack_status *status) {
//   edgepack_options options = {sizeof options, runtime};
//   return edgepack_open(folder, &options, model, status);
// }
// static int32_t predict(const edgepack_model *model, const void *rgb, size_t bytes, int64_t width, int64_t height,
//                        edgepack_answers **answers, edgepack_status *status) {
//   edgepack_frame frame = {EDGEPACK_RGB, width, height, 1, {{rgb, bytes, 3 * width, 3}}};
//   edgepack_item item = {.frame = &frame};
//   return edgepack_predict(model, &item, 1, NULL, answers, status);
// }
import "C"

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"unsafe"
)

func check(code C.int32_t, status *C.edgepack_status) {
	if code != C.EDGEPACK_OK {
		fmt.Fprintf(os.Stderr, "error %d: %s\n  hint: %s\n", code, C.GoString(&status.text[0]), C.GoString(&status.hint[0]))
		os.Exit(1)
	}
}

func number(word string) C.int64_t {
	found, err := strconv.ParseInt(word, 10, 64)
	if err != nil {
		panic(err)
	}
	return C.int64_t(found)
}

func main() {
	rgb, err := io.ReadAll(os.Stdin)
	if err != nil || len(os.Args) != 5 || len(rgb) == 0 {
		fmt.Fprintln(os.Stderr, "usage: main RUNTIME BUNDLE WIDTH HEIGHT <RGB")
		os.Exit(2)
	}
	runtime, folder := C.CString(os.Args[1]), C.CString(os.Args[2])
	defer C.free(unsafe.Pointer(runtime))
	defer C.free(unsafe.Pointer(folder))
	var status C.edgepack_status
	var model *C.edgepack_model
	check(C.open_model(folder, runtime, &model, &status), &status)
	defer C.edgepack_close(model)
	var answers *C.edgepack_answers
	check(C.predict(model, unsafe.Pointer(&rgb[0]), C.size_t(len(rgb)), number(os.Args[3]), number(os.Args[4]), &answers, &status), &status)
	defer C.edgepack_free_answers(answers)
	fmt.Println(C.GoString(C.edgepack_get_json(answers)))
}
