/* Lets MeasureInstrumentation.java run edgepack_measure in its process. */
#define _GNU_SOURCE
#include <jni.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "edgepack_measure.h"

/* The folder cannot be entered, or there is no memory; edgepack_measure never returns it. */
enum { FAILED = 1 };

static char *copied(JNIEnv *env, jstring text) {
  const char *chars = (*env)->GetStringUTFChars(env, text, NULL);
  char *copy = chars ? strdup(chars) : NULL;
  if (chars) (*env)->ReleaseStringUTFChars(env, text, chars);
  return copy;
}

JNIEXPORT jint JNICALL Java_edgepack_measure_MeasureInstrumentation_measure(
    JNIEnv *env, jclass type, jobjectArray arguments, jstring folder) {
  (void)type;
  jsize count = (*env)->GetArrayLength(env, arguments);
  char *place = copied(env, folder);
  char **words = calloc((size_t)count + 2, sizeof *words);
  if (!place || !words || chdir(place)) return FAILED;
  words[0] = strdup("edgepack_measure");
  for (jsize index = 0; index < count; index++) {
    words[index + 1] = copied(env, (*env)->GetObjectArrayElement(env, arguments, index));
    if (!words[index + 1]) return FAILED;
  }
  return edgepack_measure(count + 1, words);
}
